"""Rows that an op quantises for the weight that reads them are multiplied to the bits of the rows themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from octavo.device.ops.kernels import Kernels, load_kernels
from octavo.device.ops.linear import LinearWeight
from octavo.device.ops.native.linear import PackedWeight, pack_dense
from octavo.device.ops.native.quantized import float_rows, pack_quantized
from tests.device.ops.apart import Apart

native = pytest.importorskip("octavo._native", reason="built without the native module")

DTYPES = (torch.float32, torch.bfloat16)
ROWS = (0, 1, 3, 64, 65, 200)
"""None, one, a part of a block of rows, a whole one, and more than one, of which the last is not whole."""


@pytest.fixture(autouse=True)
def _highest_instruction_set_again() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    native.set_isa("auto")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 2


def pack(kernels: Kernels, dtype: torch.dtype, *parts: tuple[str, int], k: int, bias: bool = False) -> PackedWeight:
    """Parts (format, rows) below one another."""
    assert kernels.native is not None
    stack = [(name, float_rows(random(rows, k, seed=seed))) for seed, (name, rows) in enumerate(parts)]
    num_rows = sum(rows for _, rows in parts)
    return pack_quantized(kernels.native, stack, k, random(num_rows, seed=9) if bias else None, dtype)


def runs_of(name: str) -> int:
    return sum(count for kernel, count in native.kernel_counts().items() if kernel.partition(".")[0] == name)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("isa", native.available_isas())
def test_a_norm_for_a_reader_is_the_norm_and_then_a_quantisation(isa: str, dtype: torch.dtype) -> None:
    for threads, width in ((1, 96), (2, 576), (8, 100)):
        kernels = load_kernels("native", threads, isa)
        reader = pack(kernels, dtype, ("Q8_0", 24), k=width)
        for num_rows in ROWS:
            x, start = random(num_rows, width).to(dtype), random(num_rows, width, seed=1)
            weight = random(width, seed=2).to(dtype)
            for residual in (start, start.to(dtype)):
                before = runs_of("rms_norm_quantize")
                rows, total = kernels.add_rms_norm(x, residual, weight, 1e-6, 1.0, reader)
                assert rows.dtype == torch.uint8
                assert runs_of("rms_norm_quantize") == before + 1
                plain, plain_total = kernels.add_rms_norm(x, residual, weight, 1e-6, 1.0)
                assert torch.equal(total, plain_total)
                assert torch.equal(reader.project(rows), reader.project(plain))
            rows, plain = kernels.rms_norm(x, weight, 1e-6, 0.0, reader), kernels.rms_norm(x, weight, 1e-6)
            assert torch.equal(reader.project(rows, torch.float32), reader.project(plain, torch.float32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("isa", native.available_isas())
@pytest.mark.parametrize("width", [8, 96, 1000])
def test_gate_and_up_are_activated_tile_by_tile_to_the_same_bits(width: int, isa: str, dtype: torch.dtype) -> None:
    """Halves of two formats, whose tiles are not of the same columns; then quantised for who reads them."""
    for threads, activation in ((1, "silu"), (2, "gelu_pytorch_tanh"), (8, "silu")):
        kernels = load_kernels("native", threads, isa)
        weight = pack(kernels, dtype, ("Q4_1", width), ("Q8_0", width), k=96, bias=True)
        reader = pack(kernels, dtype, ("int8", 40), k=width)
        for num_rows in ROWS:
            x = random(num_rows, 96).to(dtype)
            expected = kernels.gate_up_activation(x, Apart(weight), activation)
            before = runs_of("gate_up_activation")
            assert torch.equal(kernels.gate_up_activation(x, weight, activation), expected)
            rows = kernels.gate_up_activation(x, weight, activation, reader)
            assert rows.dtype == torch.uint8
            assert runs_of("gate_up_activation") == before + 2
            assert torch.equal(reader.project(rows), reader.project(expected))


def test_a_whole_feed_forward_layer_reads_nothing_but_quantised_rows() -> None:
    kernels, dtype = load_kernels("native", 2), torch.float32
    gate_up, down = pack(kernels, dtype, ("Q4_1", 256), k=64), pack(kernels, dtype, ("Q4_1", 64), k=128)
    x, residual, weight = random(70, 64), random(70, 64, seed=1), random(64, seed=2)

    def forward(gate_up_reader: LinearWeight | None, down_reader: LinearWeight | None) -> tuple[Tensor, Tensor]:
        normed, total = kernels.add_rms_norm(x, residual, weight, 1e-6, 0.0, gate_up_reader)
        return down.project(kernels.gate_up_activation(normed, gate_up, "silu", down_reader)), total

    fused, apart = forward(gate_up, down), forward(None, None)
    assert torch.equal(fused[0], apart[0])
    assert torch.equal(fused[1], apart[1])


def test_readers_of_other_kinds_get_numbers() -> None:
    kernels = load_kernels("native")
    assert kernels.native is not None
    quantized = pack(kernels, torch.float32, ("Q4_1", 64), k=64)
    dense = pack_dense(kernels.native, random(64, 64))
    gated = pack_dense(kernels.native, random(128, 64), gated=True)
    x, weight = random(5, 64), random(64)
    for reader in (None, dense, Apart(quantized)):
        assert kernels.rms_norm(x, weight, 1e-6, 0.0, reader).dtype == torch.float32
    assert kernels.gate_up_activation(x, gated, "silu", quantized).dtype == torch.float32


def test_rows_quantised_for_another_weight_are_refused() -> None:
    kernels = load_kernels("native")
    assert kernels.native is not None
    rows = kernels.rms_norm(random(5, 64), random(64), 1e-6, 0.0, pack(kernels, torch.float32, ("Q4_1", 8), k=64))
    before = Counter(native.kernel_counts())
    for other in (pack(kernels, torch.float32, ("Q4_1", 8), k=96), pack_dense(kernels.native, random(8, 64))):
        with pytest.raises(TypeError, match="are asked"):
            other.project(rows)
    assert Counter(native.kernel_counts()) == before
