"""Text to token ids and back: tokenizers, chat templates, incremental detokenisation; no torch, no transformers."""
