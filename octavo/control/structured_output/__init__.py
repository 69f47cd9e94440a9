"""Answers of a given shape: grammars, compiled beside the engine, that say which tokens may come next."""
