"""Fills a model's parameters from a checkpoint, as its weight map says.

First the whole journey is planned from headers: every parameter must be filled exactly once, every tensor must have a
place or be skipped, every shape must fit. Only then is the first byte copied.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from octavo.checkpoint.resolve import Checkpoint
from octavo.device.layers.weight_map import WeightMap
from octavo.device.loader.dummy import fill_dummy
from octavo.device.loader.gguf import GGUFSource
from octavo.device.loader.safetensors import SafetensorsSource
from octavo.device.loader.source import Move, StoredTensor, WeightSource
from octavo.device.loader.weight_map import NameResolver, Placement
from octavo.words.errors import CheckpointError, UnsupportedError


class LoadableModel(Protocol):
    """What a model shows to the loader."""

    @property
    def weight_map(self) -> WeightMap: ...

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]: ...


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What was loaded: tensors of the files, their bytes as stored, and the time it took."""

    num_tensors: int
    bytes: int
    seconds: float


def load_weights(
    model: LoadableModel, checkpoint: Checkpoint, *, load_format: str = "auto", seed: int = 0, num_threads: int = 2
) -> LoadReport:
    """Fill every parameter of ``model`` in place, in the parameter's dtype, and say what was read.

    ``load_format`` is ``LoadConfig.load_format``; with "dummy" no file is read and ``seed`` decides the weights.
    ``num_threads`` dequantise at once; torch's own thread settings are left alone. Raises
    CheckpointError (file and tensor named) for a broken file and for a missing, unexpected or misshapen tensor, and
    UnsupportedError for a storage type that cannot be read, in both cases before any parameter is changed.
    """
    begin = time.perf_counter()
    # Detached: the same memory without autograd, whose switch would be one per loader thread.
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    if load_format == "dummy":
        num_tensors, nbytes = fill_dummy(parameters, seed=seed)
    else:
        num_tensors, nbytes = _fill(parameters, model.weight_map, open_source(checkpoint, num_threads=num_threads))
    return LoadReport(num_tensors, nbytes, time.perf_counter() - begin)


def _fill(parameters: Mapping[str, Tensor], weight_map: WeightMap, source: WeightSource) -> tuple[int, int]:
    with closing(source):
        moves = plan_moves(parameters, weight_map, source)
        source.copy(moves)
    return len(moves), sum(move.stored.nbytes for move in moves)


def open_source(checkpoint: Checkpoint, *, num_threads: int = 1) -> WeightSource:
    """Open the weights of a checkpoint; every header is read and checked here."""
    if checkpoint.kind == "gguf":
        return GGUFSource(checkpoint.gguf, num_threads=num_threads)
    return SafetensorsSource(checkpoint.path)


def plan_moves(parameters: Mapping[str, Tensor], weight_map: WeightMap, source: WeightSource) -> list[Move]:
    """Return the copies that fill every parameter exactly once; errors as in ``load_weights``."""
    names = NameResolver(weight_map, gguf=source.gguf)
    filled: dict[tuple[str, int], StoredTensor] = {}
    moves: list[Move] = []
    for stored in source.tensors.values():
        place = _placement(names, stored, parameters)
        if place is None:
            continue
        if not source.can_read(stored):
            raise UnsupportedError(f"{stored.file}, tensor {stored.name!r}: weights stored as {stored.type}")
        if earlier := filled.get((place.parameter, place.start)):
            raise CheckpointError(stored.file, f"fills the same weights as {earlier.name!r}", tensor=stored.name)
        filled[place.parameter, place.start] = stored
        moves.append(Move(stored, _target(stored, place, parameters[place.parameter]), place.interleaved_heads))
    _check_all_filled(names, source, parameters, filled)
    if sum(move.target.numel() for move in moves) != sum(parameter.numel() for parameter in parameters.values()):
        raise AssertionError("the weight map leaves rows of a stacked parameter unfilled")
    return moves


def _placement(names: NameResolver, stored: StoredTensor, parameters: Mapping[str, Tensor]) -> Placement | None:
    try:
        place = names.resolve(stored.name)
    except KeyError:
        place = Placement("")
    if place is not None and place.parameter not in parameters:
        raise CheckpointError(stored.file, "unexpected: the model has no place for it", tensor=stored.name)
    return place


def _target(stored: StoredTensor, place: Placement, parameter: Tensor) -> Tensor:
    target = parameter if place.num_rows is None else parameter.narrow(0, place.start, place.num_rows)
    if tuple(target.shape) != stored.shape:
        problem = f"has shape {list(stored.shape)}; {place.parameter} needs {list(target.shape)}"
        raise CheckpointError(stored.file, problem, tensor=stored.name)
    return target


def _check_all_filled(
    names: NameResolver,
    source: WeightSource,
    parameters: Mapping[str, Tensor],
    filled: dict[tuple[str, int], StoredTensor],
) -> None:
    missing = [
        source_name
        for parameter in parameters
        for source_name, start in names.sources(parameter)
        if (parameter, start) not in filled
    ]
    if missing:
        file = next((stored.file for stored in source.tensors.values()), "the checkpoint")
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise CheckpointError(file, f"is missing{more}", tensor=missing[0])
