"""Applies a model's ``WeightMap``: a name in a file -> the rows of a parameter it fills.

The map itself (``WeightMap``, ``Rename``, ``Stack``, ``Skip``, ``ROPE_TABLES``, ``GGUF_NAMES``) is data that models
state; it is in ``octavo/device/layers/weight_map.py``, below both models and loader. Models import it from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from octavo.device.layers.weight_map import Rename, Rule, Skip, WeightMap

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one tensor goes: into ``parameter``, at rows [start, start + num_rows), or all of it.

    ``num_rows`` is None where the tensor fills the parameter. ``shard`` is the dimension that tensor parallelism
    splits, if any. ``interleaved_heads`` > 0 says that the rows of so many heads hold their rotary halves
    interleaved and are to be put back.
    """

    parameter: str
    start: int = 0
    num_rows: int | None = None
    shard: int | None = None
    interleaved_heads: int = 0


class NameResolver:
    """Looks up file names in a weight map; ``gguf`` says which of the two vocabularies the file speaks."""

    def __init__(self, weight_map: WeightMap, *, gguf: bool) -> None:
        self._prefixes = () if gguf else weight_map.prefixes
        self._translation = _by_template(weight_map.gguf_names) if gguf else {}
        self._interleaved = _by_template(weight_map.gguf_interleaved) if gguf else {}
        self._places: dict[str, tuple[tuple[str, ...], Placement | None]] = {}
        self._skipped_prefixes: list[str] = []
        self._sources: dict[str, list[tuple[str, Placement]]] = {}
        self._file_names = {model: file for file, model in weight_map.gguf_names.items()} if gguf else {}
        for rule in weight_map.rules:
            self._add(rule)

    def resolve(self, name: str) -> Placement | None:
        """Return where the tensor goes, None where the model does not want it; KeyError for an unexpected name."""
        template, numbers = _split(self._model_name(name))
        if any(template.startswith(prefix) for prefix in self._skipped_prefixes):
            return None
        labels, place = self._places[template]
        if place is None:
            return None
        parameter = _fill(place.parameter, dict(zip(labels, numbers, strict=True)))
        heads = self._interleaved.get(template, 0)
        return Placement(parameter, place.start, place.num_rows, place.shard, heads)

    def sources(self, parameter: str) -> list[tuple[str, int]]:
        """Return (name in the file, first row) of every tensor that a parameter is made of.

        Raises AssertionError where the map does not say how to fill it.
        """
        template, numbers = _split(parameter)
        if template not in self._sources:
            raise AssertionError(f"weight map has no rule that fills {parameter!r}")
        found = []
        for source, place in self._sources[template]:
            labels = dict(zip(_labels(place.parameter), numbers, strict=True))
            found.append((_fill(self._file_names.get(source, source), labels), place.start))
        return found

    def _model_name(self, name: str) -> str:
        template, numbers = _split(name)
        if translated := self._translation.get(template):
            return _fill(translated, dict(zip(_labels(translated), numbers, strict=True)))
        for found, instead in self._prefixes:
            if name.startswith(found):
                return instead + name[len(found) :]
        return name

    def _add(self, rule: Rule) -> None:
        if isinstance(rule, Skip) and rule.source.endswith("*"):
            self._skipped_prefixes.append(_template(rule.source[:-1]))
            return
        for source, place in _placements(rule):
            template = _template(source)
            if template in self._places:
                raise AssertionError(f"weight map has two rules for {source!r}")
            self._places[template] = (_labels(source), place)
            if place is not None:
                self._sources.setdefault(_template(place.parameter), []).append((source, place))


def _placements(rule: Rule) -> Iterator[tuple[str, Placement | None]]:
    if isinstance(rule, Skip):
        yield rule.source, None
    elif isinstance(rule, Rename):
        yield rule.source, Placement(rule.target, shard=rule.shard)
    else:
        start = 0
        for source, num_rows in rule.parts:
            yield source, Placement(rule.target, start, num_rows, rule.shard)
            start += num_rows


def _split(name: str) -> tuple[str, tuple[str, ...]]:
    """Return the name with "{}" in place of every segment that is a number, and those numbers."""
    segments = name.split(".")
    numbers = tuple(segment for segment in segments if segment.isdecimal())
    return ".".join("{}" if segment.isdecimal() else segment for segment in segments), numbers


def _is_label(segment: str) -> bool:
    return segment.startswith("{") and segment.endswith("}")


def _labels(pattern: str) -> tuple[str, ...]:
    return tuple(segment for segment in pattern.split(".") if _is_label(segment))


def _template(pattern: str) -> str:
    return ".".join("{}" if _is_label(segment) else segment for segment in pattern.split("."))


def _fill(pattern: str, numbers: Mapping[str, str]) -> str:
    return ".".join(numbers[segment] if _is_label(segment) else segment for segment in pattern.split("."))


def _by_template(table: Mapping[str, Value]) -> dict[str, Value]:
    return {_template(pattern): value for pattern, value in table.items()}
