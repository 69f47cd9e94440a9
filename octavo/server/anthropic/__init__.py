"""Anthropic's interface."""
