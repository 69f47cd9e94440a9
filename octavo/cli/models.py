"""``octavo models``: what the catalogue offers and what the cache holds."""

from __future__ import annotations

import argparse

from octavo.checkpoint.catalogue import list_models


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    for entry in list_models():
        state = "cached" if entry.path else f"octavo pull {entry.name}"
        print(f"{entry.name:<24} {state:<28} {entry.summary}".rstrip())
    return 0
