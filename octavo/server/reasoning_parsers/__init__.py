"""Thoughts in the text of a model, one file per style; ``table.py`` names them."""
