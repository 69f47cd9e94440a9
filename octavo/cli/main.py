"""The ``octavo`` command: finds the subcommand, parses its flags, turns errors into one line and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import io
import logging
import os
import re
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any, NoReturn

from octavo import __version__
from octavo.config.absent import ABSENT
from octavo.config.env import read_environment
from octavo.config.flat import with_hyphens
from octavo.device.platform.torch_import import import_torch_lazily
from octavo.util.logs import init_logging
from octavo.words.errors import ConfigError, OctavoError

COMMANDS = {
    "serve": ("octavo.cli.serve", "serve OpenAI and Anthropic clients over HTTP"),
    "generate": ("octavo.cli.generate", "answer prompts from flags, a file or standard input"),
    "chat": ("octavo.cli.chat", "talk to a model in the terminal"),
    "estimate": ("octavo.cli.estimate", "memory a model needs, without loading its weights"),
    "bench": ("octavo.cli.bench", "measure the engine, a server under load, or this machine"),
    "run-batch": ("octavo.cli.run_batch", "answer a file of OpenAI requests into another file"),
    "collect-env": ("octavo.cli.collect_env", "what a report of a problem should say about this machine"),
    "pull": ("octavo.cli.pull", "download a model into the cache"),
    "models": ("octavo.cli.models", "list the models of the catalogue and the cache"),
}

USAGE = """usage: octavo COMMAND [options]

An LLM inference and serving engine.

commands:
{commands}

options:
  -h, --help     show this help, or that of a command: octavo COMMAND --help
  -v, --verbose  (after a command) also log the plan with its reasons
  -V, --version  show the version

first steps:
  octavo pull smollm2-135m
  octavo generate smollm2-135m --chat --prompt "Why is the sky blue?"
  octavo serve smollm2-135m    (then open http://127.0.0.1:8000/ui)
"""

_OPTION_NAME = re.compile(r"[a-z]+(_[a-z]+)+")

logger = logging.getLogger("octavo.cli.main")


class Parser(argparse.ArgumentParser):
    """An argument parser that names the nearest flag when it meets an unknown one, and exits with 2.

    It and its subcommands have ``-v``, absent from the namespace unless given.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)
        self.add_argument(
            "-v",
            "--verbose",
            action="store_true",
            default=argparse.SUPPRESS,
            help="log more on stderr: the plan with its reasons, seconds of every phase, tracebacks of errors",
        )

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse all of ``arguments``; an unknown one ends the program."""
        parsed, unknown = self.parse_known_args(arguments)
        if unknown:
            self.error(self._describe_unknown(unknown[0]))
        return parsed

    def _describe_unknown(self, argument: str) -> str:
        if not argument.startswith("-"):
            return f"unexpected argument {argument!r}"
        flag = argument.split("=", 1)[0]
        if advice := absent_advice(flag):
            return f"unknown flag {flag}: {advice}."
        return f"unknown flag {flag}.{did_you_mean(flag, self._flags())}"

    def _flags(self) -> list[str]:
        """Flags of this parser and of its subcommands."""
        nested = [action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        inner = [flag for commands in nested for command in commands.values() for flag in command._flags()]
        return [*self._option_string_actions, *inner]

    def format_help(self) -> str:
        """Every option has its own lines, so the first one shows only what must be given."""
        required = [str(action.metavar or action.dest) for action in self._get_positional_actions()]
        self.usage = " ".join(["%(prog)s", *required, "[options]"])
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {message}\nSee {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


def absent_advice(flag: str) -> str | None:
    """What to do instead of a flag that only other engines have, with options spelt as flags."""
    if flag == "--model":
        return "the model stands by itself, as in octavo serve MODEL"
    advice = ABSENT.get(flag.removeprefix("--").removeprefix("no-").replace("-", "_"))
    return advice and _OPTION_NAME.sub(lambda name: "--" + name[0].replace("_", "-"), advice)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean {nearest[0]}?" if nearest else ""


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return USAGE.format(commands="\n".join(lines))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    _write_any_text()
    program = f"octavo {argv[0]}" if argv and argv[0] in COMMANDS else "octavo"
    try:
        exit_code = run_command(argv[0], argv[1:]) if argv and argv[0] in COMMANDS else run_no_command(argv)
        print(end="", flush=True)  # what cannot be written is found here, not on Python's way out
        return exit_code
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # as in `octavo ... | head`: the reader has what it wanted
        _discard_unwritten()
        return 1
    except (OctavoError, OSError) as error:
        logger.debug("%s failed", program, exc_info=error)
        print(f"{program}: error: {error}", file=sys.stderr)
        _discard_unwritten()
        return 2 if isinstance(error, ConfigError) else 1


def run_command(name: str, argv: Sequence[str]) -> int:
    import_torch_lazily()
    module_name, summary = COMMANDS[name]
    module: ModuleType = importlib.import_module(module_name)
    parser = Parser(prog=f"octavo {name}", description=summary[0].upper() + summary[1:] + ".")
    module.add_arguments(parser)
    args = parser.parse(with_hyphens(argv))
    _start_logging(verbose="verbose" in args)
    return int(module.run(args))


def run_no_command(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage(), end="")
        return 0 if argv else 2
    if argv[0] in ("-V", "--version"):
        print(f"octavo {__version__}")
        return 0
    raise ConfigError(f"unknown command {argv[0]!r}.{did_you_mean(argv[0], COMMANDS)}")


def _write_any_text() -> None:
    """A character that the locale's encoding lacks is written as an escape, and ends no program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _start_logging(*, verbose: bool) -> None:
    environment = read_environment()
    init_logging(level="DEBUG" if verbose else environment.logging_level, as_json=environment.logging_json)


def _discard_unwritten() -> None:
    """Let standard output go where nothing fails, if what is left in its buffer cannot be written."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    raise SystemExit(main())
