"""The flat view of EngineConfig: keyword arguments, CLI flags and the docs table, derived from the annotated fields.

Everything here follows from the fields of the config dataclasses; a new option is one new field and nothing else.
"""

from __future__ import annotations

import argparse
import difflib
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from octavo.config.absent import ABSENT
from octavo.config.engine_config import EngineConfig
from octavo.config.fields import Option
from octavo.config.server import ServeConfig
from octavo.util.byte_size import parse_byte_size
from octavo.words.errors import ConfigError, UnknownOptionError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One option: its ``name`` (unique over the tree), the ``area`` it lives in, and what its field says."""

    name: str
    area: str
    type: type
    optional: bool
    default: Any
    option: Option

    @property
    def flag(self) -> str:
        """Spelling on a command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def expected(self) -> str:
        """What a value may be, in words."""
        if self.option.choices:
            return ("one of " if len(self.option.choices) > 1 else "") + ", ".join(self.option.choices)
        kind = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}[self.type]
        if self.option.at_least is not None and self.option.at_least == self.option.at_most:
            return _plain(self.option.at_least)
        bounds = [f">= {_plain(self.option.at_least)}"] if self.option.at_least is not None else []
        bounds += [f"<= {_plain(self.option.at_most)}"] if self.option.at_most is not None else []
        allowed = [f"{kind} {' and '.join(bounds)}".strip(), *(repr(word) for word in self.option.words)]
        return " or ".join(allowed)


@cache
def options(tree: type = EngineConfig) -> tuple[Leaf, ...]:
    """Every option of a config tree (a dataclass of areas), in its order."""
    areas = get_type_hints(tree)
    return tuple(leaf for area, config_type in areas.items() for leaf in _leaves(area, config_type))


@cache
def _by_name(tree: type = EngineConfig) -> Mapping[str, Leaf]:
    return {leaf.name: leaf for leaf in options(tree)}


def config_from_kwargs(**kwargs: Any) -> EngineConfig:
    """The config that ``kwargs`` ask for; what is left out keeps its default.

    Raises UnknownOptionError with the nearest name, ConfigError for a value of the wrong type or out of bounds.
    """
    return tree_from_options(EngineConfig, kwargs)


def tree_from_options(tree: type[T], given: Mapping[str, Any]) -> T:
    """The same for any config tree."""
    areas = get_type_hints(tree)
    values: dict[str, dict[str, Any]] = {area: {} for area in areas}
    for name, value in given.items():
        leaf = _find(name, tree)
        values[leaf.area][name] = check_value(leaf, value)
    return tree(**{area: areas[area](**fields) for area, fields in values.items()})


def non_default(config: EngineConfig) -> dict[str, Any]:
    """Options of ``config`` that differ from their defaults, flat: what a start-up log line shows."""
    return {name: value for name, value in flat(config).items() if value != _by_name()[name].default}


def flat(config: EngineConfig) -> dict[str, Any]:
    """All options of ``config`` by name; ``config_from_kwargs(**flat(config)) == config``."""
    return {leaf.name: getattr(getattr(config, leaf.area), leaf.name) for leaf in options()}


class EngineArgs:
    """Options by name, as one flat object: ``EngineArgs(model="...", max_num_seqs=8).create_engine_config()``.

    Each option is an attribute. Values are checked when the object is made, with the errors of config_from_kwargs.
    """

    def __init__(self, model: str | None = None, **kwargs: Any) -> None:
        given = kwargs if model is None else {"model": model, **kwargs}
        self._config = config_from_kwargs(**given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return getattr(getattr(self._config, _find(name).area), name)
        except UnknownOptionError as error:
            raise AttributeError(str(error)) from None

    def __repr__(self) -> str:
        return f"EngineArgs({', '.join(f'{k}={v!r}' for k, v in non_default(self._config).items())})"

    @classmethod
    def from_cli_args(cls, namespace: argparse.Namespace) -> EngineArgs:
        """From a namespace of a parser that ``add_cli_arguments`` was given."""
        return cls(**options_in(namespace))

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add a flag per option to ``parser`` and return it."""
        add_cli_arguments(parser)
        return parser

    def create_engine_config(self) -> EngineConfig:
        """The config tree."""
        return self._config


def add_cli_arguments(parser: argparse.ArgumentParser, *, tree: type = EngineConfig, skip: Sequence[str] = ()) -> None:
    """Add a flag per option of ``tree``, in a group per area, but for the names in ``skip`` (such as ``model``).

    Options that were not given are absent from the namespace. ``with_hyphens`` lets users write underscores too.
    """
    for area in get_type_hints(tree):
        group = parser.add_argument_group(f"{area} options")
        for leaf in options(tree):
            if leaf.area == area and leaf.name not in skip:
                _add_flag(group, leaf)


def with_hyphens(arguments: Sequence[str]) -> list[str]:
    """Command-line ``arguments`` with the underscores of flag names turned to hyphens; values stay as they are."""
    return [_hyphenated(argument) if argument.startswith("--") else argument for argument in arguments]


def _hyphenated(argument: str) -> str:
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def config_from_namespace(namespace: argparse.Namespace, **extra: Any) -> EngineConfig:
    """The config that parsed flags ask for; ``extra`` wins. Entries that are no options are left alone."""
    return config_from_kwargs(**{**options_in(namespace), **extra})


def options_page() -> str:
    """The text of docs/options.md."""
    preface = (
        "# Engine options\n\n"
        "Flags of `octavo serve`, `generate`, `chat`, `estimate` and `bench`; with underscores, the keyword arguments\n"
        "of `LLM` and `EngineArgs`. This page is written by `make docs` from the fields in `octavo/config/`.\n"
    )
    server = "\n# Server options\n\nFurther flags of `octavo serve`; `LLM` knows none of them.\n\n"
    return preface + "\n" + markdown_table() + server + markdown_table(ServeConfig)


def markdown_table(tree: type = EngineConfig) -> str:
    """The options, a table per area."""
    lines: list[str] = []
    for area in get_type_hints(tree):
        lines += [f"## {area}", "", "| Option | Value | Default | Meaning |", "|---|---|---|---|"]
        lines += [_row(leaf) for leaf in options(tree) if leaf.area == area]
        lines.append("")
    return "\n".join(lines)


def check_value(leaf: Leaf, value: Any) -> Any:
    """``value`` as the option's type, or ConfigError. Text is read as a command line would be."""
    if value is None and leaf.optional:
        return None
    if isinstance(value, str) and (value in leaf.option.words or value in leaf.option.choices):
        return value
    converted = _convert(leaf, value)
    within = (leaf.option.at_least is None or converted >= leaf.option.at_least) and (
        leaf.option.at_most is None or converted <= leaf.option.at_most
    )
    if leaf.option.choices or not within:
        raise _wrong(leaf, value)
    return converted


def _leaves(area: str, config_type: type) -> list[Leaf]:
    hints = get_type_hints(config_type, include_extras=True)
    return [_leaf(area, field.name, hints[field.name], field.default) for field in fields(config_type)]


def _leaf(area: str, name: str, hint: Any, default: Any) -> Leaf:
    if get_origin(hint) is not Annotated or default is MISSING:
        raise TypeError(f"config field {area}.{name} needs Annotated[type, Option(...)] and a default")
    declared, option = get_args(hint)
    alternatives = get_args(declared) if get_origin(declared) in (Union, types.UnionType) else (declared,)
    kinds = [kind for kind in alternatives if kind is not types.NoneType]
    # "int | str" with words is an int that may also be one of the words.
    kind = kinds[0] if len(kinds) == 1 else next(each for each in kinds if each is not str)
    optional = types.NoneType in alternatives
    return Leaf(name=name, area=area, type=kind, optional=optional, default=default, option=option)


def _find(name: str, tree: type = EngineConfig) -> Leaf:
    leaf = _by_name(tree).get(name)
    if leaf is None:
        near = difflib.get_close_matches(name, _by_name(tree), n=1)
        raise UnknownOptionError(name, near[0] if near else None, advice=ABSENT.get(name))
    return leaf


def _convert(leaf: Leaf, value: Any) -> Any:
    converters = {bool: _to_bool, int: _to_bytes if leaf.name.endswith("_bytes") else _to_int, float: _to_float}
    try:
        return converters.get(leaf.type, _to_text)(value)
    except (ValueError, TypeError, LookupError, OverflowError):
        raise _wrong(leaf, value) from None


def _to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[_to_text(value).lower()]


def _to_int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise TypeError
    return int(value)


def _to_bytes(value: Any) -> int:
    return parse_byte_size(value) if isinstance(value, str) else _to_int(value)


def _to_float(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    number = float(value)
    if number != number:
        raise ValueError
    return number


def _to_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _wrong(leaf: Leaf, value: Any) -> ConfigError:
    return ConfigError(f"{leaf.name}={value!r} cannot be had: give {leaf.expected}")


def _add_flag(group: Any, leaf: Leaf) -> None:
    default = "" if leaf.default is None else f" [{_default_text(leaf)}]"
    shown = f"{leaf.option.help}{default}".replace("%", "%%")
    keywords: dict[str, Any] = {"dest": leaf.name, "default": argparse.SUPPRESS, "help": shown}
    if leaf.type is bool:
        keywords["action"] = argparse.BooleanOptionalAction
    else:
        keywords["metavar"] = leaf.option.metavar or "|".join(leaf.option.choices) or leaf.type.__name__.upper()
        keywords["type"] = _argument_type(leaf)
    if leaf.option.listed:
        keywords |= {"nargs": "+", "action": _JoinWords}
    short = [leaf.option.short] if leaf.option.short else []
    group.add_argument(*short, leaf.flag, **keywords)


class _JoinWords(argparse.Action):
    """``--flag a b`` is ``--flag a,b``."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        setattr(namespace, self.dest, ",".join(values))


def _argument_type(leaf: Leaf) -> Any:
    def parse(text: str) -> Any:
        try:
            return check_value(leaf, text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def options_in(namespace: argparse.Namespace, tree: type = EngineConfig) -> dict[str, Any]:
    """What was given of ``tree``'s options, by name."""
    return {name: value for name, value in vars(namespace).items() if name in _by_name(tree)}


def _default_text(leaf: Leaf) -> str:
    return "unset" if leaf.default is None else str(leaf.default).lower() if leaf.type is bool else str(leaf.default)


def _row(leaf: Leaf) -> str:
    cells = [f"`{leaf.flag}`", leaf.expected, f"`{_default_text(leaf)}`", leaf.option.help]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _plain(number: float | None) -> str:
    return f"{number:g}" if number is not None else ""
