"""Calls of tools in the text of a model, one file per format; ``table.py`` names them."""
