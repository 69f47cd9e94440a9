"""The HTTP server: OpenAI's and Anthropic's interfaces over one AsyncLLM."""
