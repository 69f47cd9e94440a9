"""One launch for the projection and its heads gives the bits of the projection and a launch for the heads after it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from octavo.device.ops.kernels import Kernels, load_kernels
from octavo.device.ops.linear import LinearWeight
from octavo.device.ops.native.linear import PackedWeight, pack_dense
from octavo.device.ops.native.quantized import float_rows, pack_quantized
from octavo.device.ops.qkv_rope_write import HeadNorm
from octavo.device.ops.rope import RopeTable
from tests.device.ops.apart import Apart
from tests.device.ops.naive import in_strips

native = pytest.importorskip("octavo._native", reason="built without the native module")

HIDDEN, ROWS, NUM_BLOCKS = 96, 150, 10
HEADS = ((3, 1, 64), (14, 2, 64), (4, 1, 256), (2, 2, 72), (6, 2, 8), (3, 3, 80))
"""(query heads, KV heads, head size): groups of 3 and 7, heads of many panels and of half a one, and of five."""

FORMATS: dict[str, tuple[str, str, str]] = {"Q4_1": ("Q4_1", "Q4_1", "Q8_0"), "int8": ("int8", "int8", "int8")}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 2


def pack(kernels: Kernels, format_name: str, sizes: tuple[int, ...], dtype: torch.dtype) -> PackedWeight:
    """Queries, keys and values below one another, with a bias."""
    assert kernels.native is not None
    weight, bias = random(sum(sizes), HIDDEN, seed=1), random(sum(sizes), seed=2)
    if format_name == "dense":
        return pack_dense(kernels.native, weight.to(dtype), bias)
    parts = zip(FORMATS[format_name], weight.split(sizes), strict=True)
    return pack_quantized(kernels.native, [(name, float_rows(part)) for name, part in parts], HIDDEN, bias, dtype)


@dataclass(frozen=True)
class Layer:
    """What is done to heads of a shape; every other row has a slot, in falling order."""

    heads: tuple[int, int, int]
    dtype: torch.dtype
    cache_dtype: torch.dtype
    has_norm: bool

    def run(self, kernels: Kernels, weight: LinearWeight, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and the cache."""
        _, num_kv_heads, size = self.heads
        entries = size + 4 if self.cache_dtype == torch.int8 else size
        cache = in_strips(torch.zeros(2, NUM_BLOCKS, 16, num_kv_heads, entries, dtype=self.cache_dtype))
        rows = torch.arange(len(x))
        slots = torch.where(rows % 5 == 2, -1, NUM_BLOCKS * 16 - 1 - rows)
        norm = HeadNorm(random(size, seed=3).to(self.dtype), random(size, seed=4).to(self.dtype), 1e-6, 1.0)
        offset = None if self.has_norm else random(num_kv_heads, size, seed=5)
        angles = torch.arange(50).unsqueeze(1) * torch.logspace(0, -3, size // 2)
        table = RopeTable(torch.cat((angles.cos(), angles.sin()), dim=1))
        given = (x, weight, rows * 7 % 50, table, cache, slots, norm if self.has_norm else None, offset)
        return kernels.qkv_rope_write(*given), cache


def fused_launches() -> int:
    return sum(count for name, count in native.kernel_counts().items() if name.startswith("qkv_rope_write."))


@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("format_name", ["dense", *FORMATS])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_it_is_the_projection_and_then_the_heads(
    heads: tuple[int, int, int], format_name: str, cache_dtype: torch.dtype
) -> None:
    torch.set_num_threads(1)
    num_heads, num_kv_heads, size = heads
    sizes = (num_heads * size, num_kv_heads * size, num_kv_heads * size)
    for dtype, threads, has_norm in ((torch.float32, 2, False), (torch.bfloat16, 1, True), (torch.bfloat16, 8, False)):
        kernels = load_kernels("native", threads)
        weight = pack(kernels, format_name, sizes, dtype)
        layer = Layer(heads, dtype, cache_dtype, has_norm)
        for num_rows in (0, 1, 8, ROWS):
            x, ones = random(num_rows, HIDDEN).to(dtype), torch.ones(HIDDEN, dtype=dtype)
            rows = kernels.rms_norm(x, ones, 1e-6, 0.0, weight)  # quantised for it, if it is
            before, ran = fused_launches(), Counter(native.kernel_counts())
            fused = layer.run(kernels, weight, rows)
            assert fused_launches() == before + 1
            assert "rope_write" not in {name.partition(".")[0] for name in Counter(native.kernel_counts()) - ran}
            apart = layer.run(kernels, Apart(weight), kernels.rms_norm(x, ones, 1e-6))
            assert fused_launches() == before + 1
            assert torch.equal(fused[0], apart[0])
            assert torch.equal(fused[1].view(torch.uint8), apart[1].view(torch.uint8))


def test_a_projection_to_other_heads_is_refused() -> None:
    kernels = load_kernels("native")
    weight = pack(kernels, "dense", (192, 64, 64), torch.float32)
    layer = native.RopeWriteLayer(3, 1, 32, 32, False)
    with pytest.raises(ValueError, match="as many columns as they have entries"):
        layer.launch_from(weight.matrix, 0, False, False)


def test_a_position_that_is_not_there_is_refused_and_the_next_step_is_right() -> None:
    kernels = load_kernels("native", 2)
    weight = pack(kernels, "Q4_1", (192, 64, 64), torch.float32)
    layer = Layer((3, 1, 64), torch.float32, torch.float32, has_norm=True)
    expected = layer.run(kernels, weight, random(8, HIDDEN))
    cache, table = expected[1].clone(), RopeTable(torch.ones(4, 64))
    with pytest.raises(IndexError, match="position 4 is not below 4"):
        kernels.qkv_rope_write(random(1, HIDDEN), weight, torch.tensor([4]), table, cache, torch.tensor([0]))
    assert torch.equal(cache, expected[1])
    assert torch.equal(layer.run(kernels, weight, random(8, HIDDEN))[0], expected[0])
