"""Native kernels between the projections: a row's bits depend on that row alone, not on threads or instruction set."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from octavo.device.ops.kernels import Kernels, load_kernels
from octavo.device.ops.linear import DenseWeight
from octavo.device.ops.qkv_rope_write import HeadNorm
from octavo.device.ops.rope import RopeTable
from octavo.words.errors import UnsupportedError
from tests.device.ops.naive import in_strips
from tests.instruction_sets import counter_of

native = pytest.importorskip("octavo._native", reason="built without the native module")

ROWS = 70
WIDTHS = (1, 8, 100, 576)
DTYPES = (torch.float32, torch.bfloat16)

Op = Callable[[Kernels, slice], list[Tensor]]


@dataclass(frozen=True)
class Given:
    """A projection that returns what it was given, so that only what follows it is tested."""

    dtype: torch.dtype = torch.float32

    def project(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return x if dtype is None else x.to(dtype)


@pytest.fixture(autouse=True)
def _highest_instruction_set() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    native.set_isa("auto")


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)


def add_rms_norm(dtype: torch.dtype, width: int) -> Op:
    x, start, weight = (random(ROWS, width, dtype=dtype, seed=seed) for seed in range(3))
    stream = random(ROWS, width, dtype=torch.float32, seed=3)

    def run(kernels: Kernels, rows: slice) -> list[Tensor]:
        return [
            result
            for residual in (start, stream)
            for result in kernels.add_rms_norm(x[rows], residual[rows], weight[0], 1e-6, 1.0)
        ]

    return run


def rms_norm(dtype: torch.dtype, width: int) -> Op:
    x, weight = random(ROWS, width, dtype=dtype), random(width, dtype=dtype, seed=1)
    return lambda kernels, rows: [kernels.rms_norm(x[rows], weight, 1e-6)]


def silu(dtype: torch.dtype, width: int) -> Op:
    x = random(ROWS, 2 * width, dtype=dtype)
    return lambda kernels, rows: [kernels.gate_up_activation(x[rows], Given(dtype), "silu")]


def gelu(dtype: torch.dtype, width: int) -> Op:
    x = random(ROWS, 2 * width, dtype=dtype)
    return lambda kernels, rows: [kernels.gate_up_activation(x[rows], Given(dtype), "gelu_pytorch_tanh")]


def add_layer_norm(dtype: torch.dtype, width: int) -> Op:
    x, residual, weight = (random(ROWS, width, dtype=dtype, seed=seed) for seed in range(3))
    return lambda kernels, rows: [kernels.add_layer_norm(x[rows], residual[rows], weight[0], weight[1], 1e-6)]


def embedding_layer_norm(dtype: torch.dtype, width: int) -> Op:
    tables, ids = [random(200, width, dtype=dtype, seed=seed) for seed in range(3)], torch.arange(ROWS) * 31 % 200
    norm = (tables[0][0], tables[1][1], 1e-6)
    return lambda kernels, rows: [kernels.embedding_layer_norm([ids[rows]] * 3, tables, *norm)]


def activations(dtype: torch.dtype, width: int) -> Op:
    x, names = random(ROWS, width, dtype=dtype), ("gelu", "gelu_new", "relu", "tanh")
    same = DenseWeight(torch.eye(width, dtype=dtype))
    return lambda kernels, rows: [kernels.linear_activation(x[rows], same, name) for name in names]


def embedding(dtype: torch.dtype, width: int) -> Op:
    table, ids = DenseWeight(random(200, width, dtype=dtype)), torch.arange(ROWS) * 31 % 200
    return lambda kernels, rows: [kernels.embedding(ids[rows], table, 5.1)]


def qkv_rope_write(dtype: torch.dtype, width: int) -> Op:
    """Three query heads and one KV head; halves and neighbours, with norms or an offset, a cache of the other type."""
    width = 4 * min(width, 25)
    head_size = 2 * width
    heads, positions, slots = random(ROWS, 5 * head_size, dtype=dtype), torch.arange(ROWS) % 40, torch.arange(ROWS)
    angles = torch.arange(40).unsqueeze(1) * torch.logspace(0, -3, width)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    norm = HeadNorm(random(head_size, dtype=dtype), random(head_size, dtype=dtype, seed=1), 1e-6, 1.0)
    offset = random(1, head_size, dtype=torch.float32, seed=2)

    def run(kernels: Kernels, rows: slice) -> list[Tensor]:
        results = []
        kinds = ((False, norm, None, dtype), (True, None, offset, torch.bfloat16))
        for interleaved, used_norm, used_offset, cache_dtype in kinds:
            cache = in_strips(torch.zeros(2, 5, 16, 1, head_size, dtype=cache_dtype))
            arguments = (positions[rows], RopeTable(cos_sin, interleaved), cache, slots[rows], used_norm, used_offset)
            results += [kernels.qkv_rope_write(heads[rows], Given(dtype), *arguments)]
            results += [stored(cache, half)[rows] for half in (0, 1)]
        return results

    return run


def stored(cache: Tensor, half: int) -> Tensor:
    """The keys or values of every slot, [slots, head_size], of a cache of one head."""
    pack, words = 4 // cache.element_size(), cache[:, 0, :, half]
    if half == 0:
        return words.unflatten(-1, (-1, 16, pack)).transpose(2, 3).flatten(3).flatten(0, 2)
    return words.unflatten(-1, (16 // pack, -1, pack)).transpose(3, 4).flatten(2, 3).flatten(0, 2)


def test_int8_keys_and_values_are_stored_as_the_reference_stores_them() -> None:
    for dtype in DTYPES:
        heads = random(ROWS, 5 * 24, dtype=dtype)
        offset = torch.linspace(-5, 5, 24).bfloat16().float().unsqueeze(0)
        heads[3, 72:96], heads[4, 96] = offset[0], float("nan")  # a key of zeros, a value that is not all numbers
        arguments = (torch.zeros(ROWS, dtype=torch.int64), RopeTable(torch.tensor([[1.0] * 12 + [0.0] * 12])))
        slots = torch.arange(ROWS).flip(0)
        caches = {name: torch.zeros(2, 5, 16, 1, 28, dtype=torch.int8) for name in ("native", "reference")}
        caches["native"] = in_strips(caches["native"])
        for name, cache in caches.items():
            load_kernels(name).qkv_rope_write(heads, Given(dtype), *arguments, cache, slots, None, offset)
        expected = in_strips(caches["reference"])
        assert scales_of(expected).isnan().sum() == 1
        assert torch.equal(scales_of(caches["native"]).nan_to_num(-1), scales_of(expected).nan_to_num(-1))
        assert torch.equal(caches["native"][..., : 16 * 24], expected[..., : 16 * 24])


def scales_of(cache: Tensor) -> Tensor:
    return cache[..., -64:].contiguous().view(torch.float32)


OPS = (
    add_rms_norm,
    rms_norm,
    add_layer_norm,
    embedding_layer_norm,
    silu,
    gelu,
    activations,
    embedding,
    qkv_rope_write,
)


def equal(got: list[Tensor], expected: list[Tensor], rows: slice = slice(None)) -> bool:
    return all(torch.equal(one, other[rows]) for one, other in zip(got, expected, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("make", OPS, ids=lambda make: make.__name__)
def test_neither_batch_nor_threads_change_a_row(make: Callable[[torch.dtype, int], Op], dtype: torch.dtype) -> None:
    one, two, eight = (load_kernels("native", num_threads) for num_threads in (1, 2, 8))
    for width in WIDTHS:
        op = make(dtype, width)
        together = op(two, slice(0, ROWS))
        assert equal(op(one, slice(0, ROWS)), together)
        assert equal(op(eight, slice(0, ROWS)), together)
        for rows in (slice(3, 4), slice(50, 61)):
            assert equal(op(two, rows), together, rows)


@pytest.mark.parametrize("isa", [isa for isa in native.available_isas() if isa != "generic"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("make", OPS, ids=lambda make: make.__name__)
def test_instruction_sets_agree_to_the_bit(
    make: Callable[[torch.dtype, int], Op], dtype: torch.dtype, isa: str
) -> None:
    for width in WIDTHS:
        op = make(dtype, width)
        generic = op(load_kernels("native", isa="generic"), slice(0, ROWS))
        before = Counter(native.kernel_counts())
        assert equal(op(load_kernels("native", isa=isa), slice(0, ROWS)), generic)
        ran = Counter(native.kernel_counts()) - before
        assert any(name == counter_of(name.partition(".")[0], isa) for name in ran)


def test_activations_are_exact_at_the_ends_of_the_scale() -> None:
    gate = torch.tensor([[-200.0, -88.0, -0.0, 1e-30, 88.0, 200.0, 3e38, float("nan")]])
    x = torch.cat((gate, torch.ones_like(gate)), dim=1)
    kernels, reference = load_kernels("native"), load_kernels("reference")
    for name in ("silu", "gelu_pytorch_tanh"):
        got = kernels.gate_up_activation(x, Given(), name)
        expected = reference.gate_up_activation(x, Given(), name)
        torch.testing.assert_close(got, expected, rtol=2e-6, atol=1e-30, equal_nan=True)


def test_the_error_function_is_exact_at_the_ends_of_the_scale() -> None:
    """Held against the definitions in float64: torch's own gelu overflows on CPUs with AVX-512."""
    x = torch.tensor([-200.0, -6.0, -1.0, -0.0, 1e-30, 0.5, 6.0, 3e38, float("nan"), float("inf")])
    wide = x.double()
    expected = {
        "gelu": wide * 0.5 * (1 + torch.erf(wide / math.sqrt(2))),
        "relu": wide.clamp(min=0),
        "tanh": wide.tanh(),
    }
    column = DenseWeight(torch.ones(1, 1))  # a projection that changes nothing
    for name, values in expected.items():
        got = load_kernels("native").linear_activation(x[:, None], column, name)[:, 0]
        torch.testing.assert_close(got, values.float(), rtol=2e-6, atol=1e-6, equal_nan=True)


def test_what_is_out_of_range_is_refused() -> None:
    kernels, table = load_kernels("native"), RopeTable(torch.ones(4, 8))
    with pytest.raises(IndexError, match="token 20 is not below 20"):
        kernels.embedding(torch.tensor([20]), DenseWeight(torch.ones(20, 8)))
    with pytest.raises(IndexError, match="id 20 is not below 20"):
        kernels.embedding_layer_norm([torch.tensor([20])], [torch.ones(20, 8)], torch.ones(8), torch.ones(8), 1e-6)
    cache, heads = in_strips(torch.zeros(2, 1, 16, 1, 8)), torch.ones(1, 24)
    for position, slot, reason in ((4, 0, "position 4"), (0, 16, "slot 16")):
        with pytest.raises(IndexError, match=reason):
            kernels.qkv_rope_write(heads, Given(), torch.tensor([position]), table, cache, torch.tensor([slot]))
    with pytest.raises(UnsupportedError, match="not in float16"):
        kernels.rms_norm(torch.ones(1, 8).half(), torch.ones(8).half(), 1e-6)


def test_empty_batches_are_taken() -> None:
    kernels = load_kernels("native", num_threads=2)
    for make in OPS:
        assert all(result.numel() == 0 for result in make(torch.float32, 8)(kernels, slice(0, 0)))
