"""Native kernels choose, filter and score as the torch reference does, on any number of threads, to the bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo.device.ops.native.context import NativeContext, open_native
from octavo.device.sample.chooser import ROW_CHOICE, Chooser, RowChoices, TorchChooser
from octavo.device.sample.native_chooser import NativeChooser
from tests.instruction_sets import counter_of

_native = pytest.importorskip("octavo._native")
ISAS: list[str] = _native.available_isas()
SIZES = (1, 2, 7, 8, 9, 31, 33, 300, 1_000, 5_003)
REFERENCE = TorchChooser()


@pytest.fixture(params=ISAS)
def native(request: pytest.FixtureRequest) -> Iterator[NativeContext]:
    yield open_native(2, request.param)
    _native.set_isa("auto")


@pytest.fixture
def chooser(native: NativeContext) -> NativeChooser:
    return NativeChooser(native)


def spread(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    return rng.normal(scale=rng.choice([0.1, 2.0, 20.0]), size=shape)


def coarse(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    """Many ties, at every border that a filter can have."""
    return rng.integers(-4, 4, size=shape) / 2


def peaked(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    logits = rng.normal(size=shape) - 90
    logits[:, rng.integers(shape[1])] = 5.0
    return logits


def holed(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    """Most ids are no candidates."""
    logits = np.where(rng.random(shape) < 0.9, -np.inf, rng.normal(size=shape))
    logits[:, rng.integers(shape[1])] = 1.0
    return logits


def equal(rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    return np.full(shape, rng.choice([-3e38, -1.0, 0.0, 1e30]))


KINDS: tuple[Callable[[np.random.Generator, tuple[int, int]], Any], ...] = (spread, coarse, peaked, holed, equal)


def logits_of(kind: Callable[..., Any], rng: np.random.Generator, size: int, rows: int = 12) -> Tensor:
    return torch.from_numpy(kind(rng, (rows, size)).astype(np.float32))


def choices_of(rng: np.random.Generator, rows: int, size: int) -> RowChoices:
    """Every filter, alone and with the others, beside greedy rows."""
    choices = np.zeros(rows, dtype=ROW_CHOICE)
    choices["seed"] = rng.integers(2**63, size=rows)
    choices["position"] = rng.integers(100_000, size=rows)
    choices["choice_index"] = rng.integers(4, size=rows)
    choices["top_k"] = rng.choice([0, 0, 1, 2, 5, 40, 300, size, 2 * size], size=rows)
    choices["top_p"] = rng.choice([1.0, 1.0, 1e-9, 0.1, 0.5, 0.9, 0.999], size=rows)
    choices["min_p"] = rng.choice([0.0, 0.0, 1e-6, 0.05, 0.5, 1.0], size=rows)
    choices["temperature"] = rng.choice([0.0, 0.3, 1.0, 1.7], size=rows)
    return choices


def choose(chooser: Chooser, logits: Tensor, choices: RowChoices, *, keep_logits: bool = False) -> list[int]:
    """A token per row, from slots in another order, whose positions are not those of the rows."""
    slots = list(range(len(choices)))[::-1]
    table = choices[slots]
    table["position"] = -1
    return chooser.choose(logits, table, slots, choices["position"].tolist(), keep_logits=keep_logits)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_the_reference_s_one_by_one(chooser: NativeChooser, kind: Callable[..., Any]) -> None:
    for number, size in enumerate(SIZES * 3):
        rng = np.random.default_rng(number)
        logits, choices = logits_of(kind, rng, size), choices_of(rng, 12, size)
        expected = choose(REFERENCE, logits.clone(), choices)
        assert choose(chooser, logits.clone(), choices) == expected, (number, size, choices)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_for_logprobs_is_what_the_filters_leave(chooser: NativeChooser, kind: Callable[..., Any]) -> None:
    for number, size in enumerate(SIZES):
        rng = np.random.default_rng(number)
        logits, choices = logits_of(kind, rng, size), choices_of(rng, 12, size)
        found, expected = logits.clone(), logits.clone()
        tokens = choose(chooser, found, choices, keep_logits=True)
        assert tokens == choose(REFERENCE, expected, choices, keep_logits=True)
        assert torch.equal(found, expected), (number, size, choices)


@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_ranks_and_the_best_are_the_reference_s(chooser: NativeChooser, kind: Callable[..., Any]) -> None:
    for number, size in enumerate(SIZES):
        rng = np.random.default_rng(number)
        logits = logits_of(kind, rng, size, rows=8)
        tokens = torch.from_numpy(rng.integers(size, size=8))
        num_best = [0, 1, 2, 5, 20, 300, size, -1]
        expected = REFERENCE.logprob_rows(logits, tokens, num_best)
        for row, wanted in zip(chooser.logprob_rows(logits, tokens, num_best), expected, strict=True):
            assert (row.token_ids, row.rank) == (wanted.token_ids, wanted.rank)
            assert np.allclose(row.logprobs, wanted.logprobs, rtol=1e-5, atol=2e-6)


def test_rows_that_hold_nan_or_infinity_or_nothing_are_told_and_cleared(chooser: NativeChooser) -> None:
    for size, place in itertools.product((1, 8, 9, 40, 333), (0, -1)):
        logits = torch.zeros(5, size)
        logits[1, place], logits[2, place], logits[3] = torch.nan, torch.inf, -torch.inf
        logits[4, place] = -torch.inf if size > 1 else 0.0
        expected = logits.clone()
        assert chooser.unusable_rows(logits, "these") == REFERENCE.unusable_rows(expected, "these")
        assert torch.equal(logits, expected)


def test_no_rows_are_no_work(chooser: NativeChooser) -> None:
    nothing = torch.empty(0, 50)
    assert chooser.unusable_rows(nothing, "these") == {}
    assert choose(chooser, nothing, np.zeros(0, dtype=ROW_CHOICE)) == []
    assert chooser.logprob_rows(nothing, torch.empty(0, dtype=torch.int64), []) == []


def test_instruction_sets_threads_and_batch_mates_change_nothing() -> None:
    rng = np.random.default_rng(0)
    logits, choices = logits_of(spread, rng, 40_001, rows=6), choices_of(rng, 6, 40_001)
    tokens, best = torch.arange(6), [5] * 6
    results = []
    for isa, num_threads in itertools.product(ISAS, (1, 2, 8)):
        chooser = NativeChooser(open_native(num_threads, isa))
        batch = choose(chooser, logits.clone(), choices), chooser.logprob_rows(logits, tokens, best)
        one_by_one = [choose(chooser, logits[r : r + 1].clone(), choices[r : r + 1])[0] for r in range(6)]
        assert one_by_one == batch[0]
        results.append(batch)
    _native.set_isa("auto")
    assert all(result == results[0] for result in results)


def test_counters_prove_that_kernels_of_the_set_ran(native: NativeContext, chooser: NativeChooser) -> None:
    isa = native.library.active_isa()
    before = native.library.kernel_counts()
    choose(chooser, torch.zeros(1, 9), np.zeros(1, dtype=ROW_CHOICE))
    chooser.logprob_rows(torch.zeros(1, 9), torch.zeros(1, dtype=torch.int64), [1])
    after = native.library.kernel_counts()
    for name in (counter_of("sampler", isa), counter_of("logprobs", isa)):
        assert after[name] == before.get(name, 0) + 1
