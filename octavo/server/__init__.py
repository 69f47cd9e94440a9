"""HTTP: the OpenAI- and Anthropic-compatible server over ``AsyncLLM``; free of torch."""
