"""The native lora op: what a row gets does not depend on the rows beside it, to the bit, on any instruction set."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from octavo.device.ops.kernels import Kernels, load_kernels
from octavo.device.ops.lora import LowRank
from octavo.device.ops.native.lora import PackedSlots

_native = pytest.importorskip("octavo._native", reason="built without the native module")

WIDTH = 40
PARTS = (600, 13)
RANKS = (1, 8, 20, 256)
DTYPES = (torch.float32, torch.bfloat16)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def slots_on(kernels: Kernels, dtype: torch.dtype) -> PackedSlots:
    assert kernels.native is not None
    slots = PackedSlots(kernels.native, len(RANKS), WIDTH, PARTS, dtype)
    for slot, rank in enumerate(RANKS):
        updates = [LowRank(random(rank, WIDTH, seed=slot), random(size, rank, seed=slot + 5), 0.7) for size in PARTS]
        slots.put(slot, [slots.pack(update) for update in updates])
    return slots


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_row_gets_the_same_bits_alone_and_among_others(isa: str, num_threads: int, dtype: torch.dtype) -> None:
    kernels = load_kernels("native", num_threads, isa)
    slots = slots_on(kernels, dtype)
    num_rows = 23
    x, y = random(num_rows, WIDTH, seed=50).to(dtype), random(num_rows, sum(PARTS), seed=51).to(dtype)
    row_slots = (torch.arange(num_rows, dtype=torch.int32) * 7) % (len(RANKS) + 1) - 1
    together = kernels.lora(y.clone(), x, slots, row_slots)
    for row in range(num_rows):
        own = slice(row, row + 1)
        assert torch.equal(kernels.lora(y[own].clone(), x[own], slots, row_slots[own]), together[own])
    load_kernels("native")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_instruction_set_gives_the_same_bits(dtype: torch.dtype) -> None:
    found = []
    for isa in _native.available_isas():
        kernels = load_kernels("native", 2, isa)
        x, y = random(9, WIDTH, seed=60).to(dtype), random(9, sum(PARTS), seed=61).to(dtype)
        row_slots = torch.arange(9, dtype=torch.int32) % 3
        found.append(kernels.lora(y, x, slots_on(kernels, dtype), row_slots))
    load_kernels("native")
    assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("isa", _native.available_isas())
def test_updates_kept_in_either_type_give_the_same_bits(isa: str, dtype: torch.dtype) -> None:
    """A layer of any type takes updates of any type, and one row slot is another's at the next call."""
    kernels = load_kernels("native", 2, isa)
    assert kernels.native is not None
    update = LowRank(random(8, WIDTH, seed=1).bfloat16(), random(PARTS[0], 8, seed=2).bfloat16(), 0.7)
    x, y = random(6, WIDTH, seed=3).to(dtype), random(6, PARTS[0], seed=4).to(dtype)
    row_slots = torch.zeros(6, dtype=torch.int32)
    found = []
    for kept_as in (torch.bfloat16, torch.float32):
        slots = PackedSlots(kernels.native, 2, WIDTH, PARTS[:1], dtype, kept_as)
        slots.put(0, [slots.pack(update)])
        row_slots[:] = torch.tensor([0, 1, -1, 0, 0, 0])
        found.append(kernels.lora(y.clone(), x, slots, row_slots))
        row_slots[1] = 0
        again = kernels.lora(y.clone(), x, slots, row_slots)
        assert torch.equal(again[0], found[-1][0]) and not torch.equal(again[1], found[-1][1])
    load_kernels("native")
    assert torch.equal(*found)
    assert torch.equal(found[0][1:3], y[1:3])


def test_a_step_without_adapters_runs_no_kernel() -> None:
    kernels = load_kernels("native", 2)
    y = random(3, sum(PARTS), seed=70)
    before = dict(_native.kernel_counts())
    none = torch.full((3,), -1, dtype=torch.int32)
    assert torch.equal(kernels.lora(y.clone(), random(3, WIDTH, seed=71), slots_on(kernels, torch.float32), none), y)
    assert {name: number for name, number in dict(_native.kernel_counts()).items() if "lora" in name} == {
        name: number for name, number in before.items() if "lora" in name
    }


def test_a_slot_there_is_not_and_an_update_of_another_shape_are_errors() -> None:
    kernels = load_kernels("native", 2)
    slots = slots_on(kernels, torch.float32)
    y = random(1, sum(PARTS), seed=80)
    with pytest.raises(IndexError):
        kernels.lora(y, random(1, WIDTH, seed=81), slots, torch.tensor([len(RANKS)], dtype=torch.int32))
    wrong = slots.pack(LowRank(random(2, WIDTH + 1, seed=82), random(PARTS[0], 2, seed=83), 1.0))
    with pytest.raises(ValueError, match="shape"):
        slots.put(0, [wrong, None])


def test_results_in_float32_are_those_before_rounding() -> None:
    kernels = load_kernels("native", 2)
    slots = slots_on(kernels, torch.bfloat16)
    x, y = (random(9, width, seed=90).bfloat16() for width in (WIDTH, sum(PARTS)))
    row_slots = torch.arange(9, dtype=torch.int32) % 4 - 1
    wide = kernels.lora(y.float(), x, slots, row_slots)
    assert wide.dtype == torch.float32
    assert torch.equal(wide.bfloat16(), kernels.lora(y, x, slots, row_slots))
