"""Fills a model's parameters from a checkpoint, as its weight map says.

First the whole journey is planned from headers: every parameter must be filled exactly once, every tensor must have a
place or be skipped, every shape must fit. Only then is the first byte copied. Layers are finished while others are
still to be filled, so that a model whose layers change their parameters' form is never in memory twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from octavo.checkpoint.resolve import Checkpoint
from octavo.device.layers.weight_map import WeightMap
from octavo.device.loader.dummy import dummy_values, fill_dummy
from octavo.device.loader.gguf import GGUFSource
from octavo.device.loader.progress import shard_progress
from octavo.device.loader.safetensors import SafetensorsSource
from octavo.device.loader.source import Move, StoredTensor, WeightSource
from octavo.device.loader.weight_map import NameResolver, Placement
from octavo.device.ops.native.quantized import float_rows
from octavo.device.platform.malloc import return_freed_memory
from octavo.words.errors import CheckpointError, UnsupportedError

BATCH_BYTES = 32 << 20
"""Parameters filled at once: enough for all threads, little enough beside a model."""


class LoadableModel(Protocol):
    """What a model shows to the loader.

    A module with a method ``finish_loading`` is told when its parameters are filled, and may then drop them. One whose
    weight is on the device "meta" gets the stored rows instead, by ``load_rows``, and packs them when it is told. One
    with a method ``model_loaded`` is told when all of the model is there.
    """

    @property
    def weight_map(self) -> WeightMap: ...

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]: ...

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]: ...


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
        counts = list(_fill_with_dummies(model, parameters, seed))
    else:
        with closing(open_source(checkpoint, num_threads=num_threads)) as source:
            counts = list(_fill(model, parameters, source))
    _tell_loaded(model)
    return LoadReport(
        sum(count for count, _ in counts), sum(nbytes for _, nbytes in counts), time.perf_counter() - begin
    )


def _fill_with_dummies(model: LoadableModel, parameters: dict[str, Tensor], seed: int) -> Iterator[tuple[int, int]]:
    modules = dict(model.named_modules())
    for batch in _batches(parameters):
        chosen = {name: parameters.pop(name) for name in batch}
        for name in [name for name, parameter in chosen.items() if parameter.is_meta]:
            rows = float_rows(dummy_values(name, chosen.pop(name).shape, seed=seed))
            modules[_layer_of(name)].load_rows([rows])  # type: ignore[operator]
            yield 1, rows.data.nbytes
        yield fill_dummy(chosen, seed=seed)
        del chosen
        _finish(modules, batch)


def _fill(model: LoadableModel, parameters: dict[str, Tensor], source: WeightSource) -> Iterator[tuple[int, int]]:
    """Yield number and bytes of the tensors of each batch. No reference to a parameter outlives its batch."""
    moves, batches = plan_moves(parameters, model.weight_map, source), _batches(parameters)
    modules = dict(model.named_modules())
    parameters.clear()
    with shard_progress([move.stored.file for stack in moves.values() for move in stack]) as progress:
        for batch in batches:
            stacks = {name: moves.pop(name) for name in batch}
            _fill_batch(modules, stacks, source)
            stored = [move.stored for stack in stacks.values() for move in stack]
            del stacks
            progress.add([tensor.file for tensor in stored])
            yield len(stored), sum(tensor.nbytes for tensor in stored)
            _finish(modules, batch)


def _fill_batch(modules: Mapping[str, nn.Module], stacks: Mapping[str, list[Move]], source: WeightSource) -> None:
    in_place: list[Move] = []
    for name, stack in stacks.items():
        if stack[0].target.is_meta:
            rows = [source.rows(move) for move in sorted(stack, key=lambda move: move.start)]
            modules[_layer_of(name)].load_rows(rows)  # type: ignore[operator]
        else:
            in_place += stack
    source.copy(in_place)


def _batches(parameters: Mapping[str, Tensor]) -> list[list[str]]:
    """Names in their order, whole layers at a time, cut where BATCH_BYTES are reached."""
    batches: list[list[str]] = [[]]
    nbytes, layer = 0, ""
    for name, parameter in parameters.items():
        if nbytes >= BATCH_BYTES and _layer_of(name) != layer:
            batches.append([])
            nbytes = 0
        batches[-1].append(name)
        nbytes, layer = nbytes + parameter.nbytes, _layer_of(name)
    return batches


def _finish(modules: Mapping[str, nn.Module], names: Sequence[str]) -> None:
    for layer in dict.fromkeys(map(_layer_of, names)):
        finish = getattr(modules[layer], "finish_loading", None)
        if finish is not None:
            finish()
    return_freed_memory()  # the parameters these layers had before: a model is never in memory twice


def _tell_loaded(model: LoadableModel) -> None:
    for _, module in model.named_modules():
        loaded = getattr(module, "model_loaded", None)
        if loaded is not None:
            loaded()


def _layer_of(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def open_source(checkpoint: Checkpoint, *, num_threads: int = 1) -> WeightSource:
    """Open the weights of a checkpoint; every header is read and checked here."""
    if checkpoint.kind == "gguf":
        return GGUFSource(checkpoint.gguf, num_threads=num_threads)
    return SafetensorsSource(checkpoint.path)


def plan_moves(parameters: Mapping[str, Tensor], weight_map: WeightMap, source: WeightSource) -> dict[str, list[Move]]:
    """Return, by parameter, the copies that fill every one of them exactly once; errors as in ``load_weights``."""
    names = NameResolver(weight_map, gguf=source.gguf)
    filled: dict[tuple[str, int], StoredTensor] = {}
    moves: dict[str, list[Move]] = {name: [] for name in parameters}
    for stored in source.tensors.values():
        place = _placement(names, stored, parameters)
        if place is None:
            continue
        if not source.can_read(stored):
            raise UnsupportedError(f"{stored.file}, tensor {stored.name!r}: weights stored as {stored.type}")
        if earlier := filled.get((place.parameter, place.start)):
            raise CheckpointError(stored.file, f"fills the same weights as {earlier.name!r}", tensor=stored.name)
        filled[place.parameter, place.start] = stored
        target = _target(stored, place, parameters[place.parameter])
        moves[place.parameter].append(Move(stored, target, place.start, place.interleaved_heads))
    _check_all_filled(names, source, parameters, filled)
    for name, parameter in parameters.items():
        if sum(move.target.numel() for move in moves[name]) == parameter.numel():
            continue
        raise AssertionError(f"the weight map leaves rows of {name!r} unfilled")
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
