"""``octavo pull``: gets a model into the cache."""

from __future__ import annotations

import argparse

from octavo.checkpoint.resolve import pull_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a catalogue name (see octavo models) or a hub id")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    print(pull_model(args.name, progress=not args.no_progress))
    return 0
