"""``octavo models``: what the catalogue offers and what the cache holds."""

from __future__ import annotations

import argparse

from octavo.checkpoint.catalogue import list_models


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    for entry in list_models():
        print(f"{entry.name:<24} {'cached' if entry.path else 'octavo pull ' + entry.name:<28} {entry.summary}")
    return 0
