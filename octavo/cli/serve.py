"""``octavo serve``: the HTTP server."""

from __future__ import annotations

import argparse

from octavo.config.flat import EngineArgs, add_cli_arguments, options_in, tree_from_options
from octavo.config.server import ServeConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="catalogue name, local folder, .gguf file or hub id")
    add_cli_arguments(parser, tree=ServeConfig)
    add_cli_arguments(parser, skip=("model",))


def run(args: argparse.Namespace) -> int:
    from octavo.server.launch import serve

    config = tree_from_options(ServeConfig, options_in(args, ServeConfig)).server
    return serve(EngineArgs.from_cli_args(args), config)
