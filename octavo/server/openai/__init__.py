"""OpenAI's interface."""
