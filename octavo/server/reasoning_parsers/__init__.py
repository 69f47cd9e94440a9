"""Thoughts in the text of a model; their styles are in ``tokenizer/reasoning_style.py``."""
