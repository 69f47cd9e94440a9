"""Every op, on every backend that has it, in every instruction set and dtype, against its definition in float64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.device.ops.kernels import Kernels, load_kernels
from octavo.device.ops.linear import DenseWeight
from octavo.device.ops.lm_head import lm_head
from octavo.device.ops.lora import DenseSlots, LowRank
from octavo.device.ops.qkv_rope_write import HeadNorm
from octavo.device.ops.rope import RopeTable
from octavo.device.ops.table import OPS
from tests.device.ops import naive
from tests.instruction_sets import counter_of

try:
    from octavo import _native as native
except ImportError:
    native = None

Kernel = Callable[..., Any]
Results = Iterator[tuple[Tensor, Tensor]]
LayOut = Callable[[Tensor], Tensor]
DTYPES = (torch.float32, torch.bfloat16)
SHAPES = ((5, 24), (1, 1), (3, 33), (0, 8))
"""(rows, width): some, a single number, a tail behind whole vectors, none."""


def isas_of(backend: str) -> list[str]:
    """Those that can run here; one name for what has no kernels of its own."""
    return ["none"] if backend == "reference" or native is None else native.available_isas()


ALL = [(name, backend, isa) for name, backends in OPS.items() for backend in backends for isa in isas_of(backend)]


@pytest.fixture(autouse=True)
def _highest_instruction_set_again() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    if native is not None:
        native.set_isa("auto")


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).double()


def table_of(rotary_dim: int, length: int = 40) -> Tensor:
    angles = torch.arange(length).unsqueeze(1) * torch.logspace(0, -3, rotary_dim // 2)
    return torch.cat((angles.cos(), angles.sin()), dim=1)


def embedding_case(kernel: Kernel, dtype: torch.dtype) -> Results:
    table, ids = random(20, 6, dtype=dtype), torch.tensor([3, 19, 0, 3])
    yield kernel(ids, DenseWeight(table)), table[[3, 19, 0, 3]].double()
    scale = float(torch.tensor(5.1).to(dtype))
    yield kernel(ids, DenseWeight(table), 5.1), table[[3, 19, 0, 3]].double() * scale


def linear_case(kernel: Kernel, dtype: torch.dtype) -> Results:
    for rows, width in SHAPES:
        x, weight = random(rows, width, dtype=dtype), random(7, width, dtype=dtype, seed=1)
        bias = random(7, dtype=dtype, seed=2)
        yield kernel(x, DenseWeight(weight)), x.double() @ weight.double().T
        yield kernel(x, DenseWeight(weight, bias)), x.double() @ weight.double().T + bias.double()


def rms_norm_case(kernel: Kernel, dtype: torch.dtype) -> Results:
    for rows, width in SHAPES:
        x, weight = random(rows, width, dtype=dtype) * 3, random(width, dtype=dtype, seed=1)
        yield kernel(x, weight, 1e-5), naive.rms_norm(x, weight, 1e-5, 0.0)
        yield kernel(x * 1e-3, weight, 1e-5, 1.0), naive.rms_norm(x * 1e-3, weight, 1e-5, 1.0)


def add_rms_norm_case(kernel: Kernel, dtype: torch.dtype) -> Results:
    for rows, width in SHAPES:
        x, start = random(rows, width, dtype=dtype), random(rows, width, dtype=dtype, seed=1) * 9
        weight = random(width, dtype=dtype)
        for residual in (start, start.float() * 1.01):
            normed, total = kernel(x, residual, weight, 1e-6, 1.0)
            expected = x.double() + residual.double()
            assert total.dtype == torch.float32
            torch.testing.assert_close(total, expected.float())
            yield normed, naive.rms_norm(expected, weight, 1e-6, 1.0)


def rope_case(kernel: Kernel, dtype: torch.dtype) -> Results:
    heads, positions = random(4, 3, 16, dtype=dtype), torch.tensor([0, 39, 7, 7])
    for rotary_dim in (16, 8):
        for interleaved in (False, True):
            cos_sin = table_of(rotary_dim)
            expected = torch.stack(
                [
                    torch.stack([naive.rotate(head, int(position), cos_sin, interleaved) for head in row])
                    for row, position in zip(heads, positions, strict=True)
                ]
            )
            yield kernel(heads, positions, RopeTable(cos_sin, interleaved)), expected


def qkv_rope_write_case(kernel: Kernel, dtype: torch.dtype, lay_out: LayOut) -> Results:
    """Six query heads and two KV heads of 16, with and without bias, norms and offset; one row of four is padding."""
    x, weight, bias = random(4, 24, dtype=dtype), random(160, 24, dtype=dtype, seed=1), random(160, dtype=dtype, seed=2)
    norm = HeadNorm(random(16, dtype=dtype, seed=3), random(16, dtype=dtype, seed=4), 1e-6, 1.0)
    positions, slots, cos_sin = torch.tensor([0, 3, 39, 5]), torch.tensor([9, 2, -1, 15]), table_of(8)
    offset = random(2, 16, dtype=torch.float32, seed=5) * 9
    for used_bias, used_norm, used_offset in ((None, None, None), (bias, None, offset), (None, norm, None)):
        cache = lay_out(torch.full((2, 2, 16, 2, 16), -7.0, dtype=dtype))
        table = RopeTable(cos_sin)
        query = kernel(x, DenseWeight(weight, used_bias), positions, table, cache, slots, used_norm, used_offset)
        projected = x.double() @ weight.double().T + (0.0 if used_bias is None else used_bias.double())
        heads = projected.view(4, 10, 16)
        expected = heads.clone()
        expected_cache = torch.full((2, 32, 2, 16), -7.0, dtype=torch.float64)
        for row in range(4):
            for head in range(8):
                turned = heads[row, head]
                if used_norm is not None:
                    factor = norm.q_weight if head < 6 else norm.k_weight
                    turned = naive.rms_norm(turned, factor, 1e-6, 1.0)
                expected[row, head] = naive.rotate(turned, int(positions[row]), cos_sin, False)
            if used_offset is not None:
                expected[row, 6:8] -= used_offset
            if slots[row] >= 0:
                expected_cache[0, slots[row]], expected_cache[1, slots[row]] = expected[row, 6:8], expected[row, 8:]
        yield query, expected[:, :6]
        yield cache, lay_out(expected_cache.unflatten(1, (2, 16)).to(dtype))


def paged_attention_case(kernel: Kernel, dtype: torch.dtype, lay_out: LayOut) -> Results:
    batch = naive.PagedBatch([(0, 9), (20, 1), (5, 1), (13, 4)], 6, 2, 16, dtype=dtype)
    sinks = random(6, dtype=dtype, seed=5)
    features: tuple[dict[str, Any], ...] = ({}, {"sliding_window": 5}, {"chunk_size": 6}, {"softcap": 1.5})
    for given in features:
        options = batch.options(**given)
        kv_cache = lay_out(batch.kv_cache)
        yield kernel(batch.query, kv_cache, batch.work, options), batch.expected(options)
        yield kernel(batch.query, kv_cache, batch.work, options, sinks), batch.expected(options, sinks)


def gate_up_activation_case(kernel: Kernel, dtype: torch.dtype) -> Results:
    for rows, width in SHAPES:
        x, weight = random(rows, width, dtype=dtype), random(14, width, dtype=dtype, seed=1)
        projected = rounded(x.double() @ weight.double().T, dtype)
        gate, up = projected[:, :7], projected[:, 7:]
        yield kernel(x, DenseWeight(weight), "silu"), gate / (1 + torch.exp(-gate)) * up
        curve = 1 + torch.tanh((2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3))
        yield kernel(x, DenseWeight(weight), "gelu_pytorch_tanh"), gate / 2 * curve * up


def lm_head_case(kernel: Kernel, dtype: torch.dtype) -> Results:
    for rows, width in SHAPES:
        hidden, weight = random(rows, width, dtype=dtype), random(5000, width, dtype=dtype, seed=1)
        logits = hidden.double() @ weight.double().T
        yield kernel(hidden, DenseWeight(weight)), logits
        yield kernel(hidden, DenseWeight(weight), 2.0), 2.0 * torch.tanh(logits / 2.0)


def lm_head_best_case(kernel: Kernel, dtype: torch.dtype) -> Results:
    """Logits, and ids, which must be right: the lowest of those that tie, as many do where there is one of bfloat16."""
    for rows, width in SHAPES:
        hidden, weight = random(rows, width, dtype=dtype), random(5000, width, dtype=dtype, seed=1)
        logits = hidden.double() @ weight.double().T
        for softcap in (None, 50.0):
            best = kernel(hidden, DenseWeight(weight), softcap)
            capped = logits if softcap is None else softcap * torch.tanh(logits / softcap)
            yield best[:, 0].float(), capped.amax(-1)
            assert best[:, 1].tolist() == logits.numpy().argmax(-1).tolist()


def add_layer_norm_case(kernel: Kernel, dtype: torch.dtype) -> Results:
    for rows, width in SHAPES:
        x, residual = random(rows, width, dtype=dtype) * 3 + 2, random(rows, width, dtype=dtype, seed=1)
        weight, bias = random(width, dtype=dtype, seed=2), random(width, dtype=dtype, seed=3)
        total = x.double() + residual.double()
        centred = total - total.sum(-1, keepdim=True) / width
        variance = (centred * centred).sum(-1, keepdim=True) / width
        expected = centred / torch.sqrt(variance + 1e-6) * weight.double() + bias.double()
        yield kernel(x, residual, weight, bias, 1e-6), expected


def embedding_layer_norm_case(kernel: Kernel, dtype: torch.dtype) -> Results:
    tables, ids = [random(9, 24, dtype=dtype, seed=seed) * 3 for seed in range(3)], torch.tensor([[3, 8, 0, 3]] * 3)
    weight, bias = random(24, dtype=dtype, seed=4), random(24, dtype=dtype, seed=5)
    for count in (1, 2, 3):
        total = sum(table.double()[[3, 8, 0, 3]] for table in tables[:count])
        centred = total - total.mean(-1, keepdim=True)
        expected = centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + 1e-6) * weight.double()
        yield kernel(list(ids[:count]), tables[:count], weight, bias, 1e-6), expected + bias.double()


def linear_activation_case(kernel: Kernel, dtype: torch.dtype) -> Results:
    for rows, width in SHAPES:
        x, weight = random(rows, width, dtype=dtype), random(7, width, dtype=dtype, seed=1)
        bias = random(7, dtype=dtype, seed=2)
        projected = rounded(x.double() @ weight.double().T + bias.double(), dtype)
        yield kernel(x, DenseWeight(weight, bias), "gelu"), projected / 2 * (1 + torch.erf(projected / 2**0.5))
        inner = (2 / torch.pi) ** 0.5 * (projected + 0.044715 * projected**3)
        yield kernel(x, DenseWeight(weight, bias), "gelu_new"), projected / 2 * (1 + torch.tanh(inner))
        yield kernel(x, DenseWeight(weight, bias), "relu"), projected * (projected > 0)
        yield kernel(x, DenseWeight(weight, bias), "tanh"), 1 - 2 / (torch.exp(2 * projected) + 1)


def encoder_attention_case(kernel: Kernel, dtype: torch.dtype) -> Results:
    """Texts of 1, 9 and 3 tokens; three heads of 8."""
    qkv, bounds = random(13, 72, dtype=dtype), [0, 1, 10, 13]
    expected = torch.zeros(13, 3, 8, dtype=torch.float64)
    parts = qkv.double().view(13, 3, 3, 8)
    for start, end in zip(bounds, bounds[1:], strict=False):
        for head in range(3):
            query, key, value = parts[start:end, :, head].unbind(1)
            weights = torch.exp(query @ key.T * 0.3)
            expected[start:end, head] = weights / weights.sum(-1, keepdim=True) @ value
    yield kernel(qkv, torch.tensor(bounds, dtype=torch.int32), 3, 0.3), expected.flatten(1)


def lora_case(kernel: Kernel, dtype: torch.dtype) -> Results:
    """Two stacked projections of 20 and 9 rows; slots with ranks 3 and 9, one with an update of the second alone."""
    adapters = DenseSlots(3, 24, (20, 9), dtype)
    shapes = {0: ((20, 3), (9, 3)), 1: (None, (9, 9)), 2: ((20, 16), (9, 1))}
    for slot, parts in shapes.items():
        adapters.put(
            slot,
            [
                LowRank(
                    random(part[1], 24, dtype=dtype, seed=slot), random(*part, dtype=dtype, seed=slot + 9), 0.5 + slot
                )
                if part
                else None
                for part in parts
            ],
        )
    x, y = random(9, 24, dtype=dtype), random(9, 29, dtype=dtype, seed=1)
    slots = torch.tensor([0, -1, 2, 0, 0, 1, 0, 0, -1], dtype=torch.int32)
    expected = y.double().clone()
    for row, slot in enumerate(slots.tolist()):
        for columns, update in zip(
            (slice(20), slice(20, 29)), adapters.updates[slot] if slot >= 0 else (), strict=False
        ):
            if update is not None:
                low = update.a.double() @ x[row].double()
                expected[row, columns] += update.scale * (update.b.double() @ low)
    got = kernel(y.clone(), x, adapters, slots)
    yield got, expected
    yield got[[1, 8]], y[[1, 8]].double()


CASES: dict[str, Callable[[Kernel, torch.dtype], Results]] = {
    "add_layer_norm": add_layer_norm_case,
    "add_rms_norm": add_rms_norm_case,
    "embedding": embedding_case,
    "embedding_layer_norm": embedding_layer_norm_case,
    "encoder_attention": encoder_attention_case,
    "gate_up_activation": gate_up_activation_case,
    "linear": linear_case,
    "linear_activation": linear_activation_case,
    "lm_head": lm_head_case,
    "lm_head_best": lm_head_best_case,
    "lora": lora_case,
    "rms_norm": rms_norm_case,
    "rope": rope_case,
}
CACHE_CASES: dict[str, Callable[[Kernel, torch.dtype, LayOut], Results]] = {
    "paged_attention": paged_attention_case,
    "qkv_rope_write": qkv_rope_write_case,
}
LAYOUTS: dict[str, LayOut] = {"reference": lambda kv_cache: kv_cache, "native": naive.in_strips}
FLOAT32_RESULTS = {"lm_head", "lm_head_best", "rope"}


@cache
def kernels_of(backend: str) -> Kernels:
    return load_kernels(backend, num_threads=2)


@contextmanager
def ran_on(isa: str) -> Iterator[None]:
    """Kernels of this instruction set run within, and none of another; "none": no kernels at all."""
    if native is None:
        yield
        return
    native.set_isa("auto" if isa == "none" else isa)
    before = Counter(native.kernel_counts())
    yield
    ran = Counter(native.kernel_counts()) - before
    assert all(name == counter_of(name.partition(".")[0], isa) for name in ran)
    assert bool(ran) == (isa != "none")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "backend", "isa"), ALL)
def test_op_computes_its_definition(name: str, backend: str, isa: str, dtype: torch.dtype) -> None:
    if backend != "reference":
        pytest.importorskip("octavo._native", reason="built without the native module")
    kernel = getattr(kernels_of(backend), name)
    result_dtype = torch.float32 if name in FLOAT32_RESULTS else dtype
    # One rounding of the result, or of an intermediate value next to a boundary: two units in the last place.
    tolerance = 1e-5 if result_dtype == torch.float32 else 2**-7
    case = partial(CACHE_CASES[name], lay_out=LAYOUTS[backend]) if name in CACHE_CASES else CASES[name]
    with ran_on(isa):
        for got, expected in case(kernel, dtype):
            assert got.dtype == result_dtype
            assert got.shape == expected.shape
            torch.testing.assert_close(got.double(), expected.double(), rtol=tolerance, atol=tolerance)


def test_every_op_has_a_case() -> None:
    assert CASES.keys() | CACHE_CASES.keys() == OPS.keys()


def test_every_op_is_a_file_of_its_name_with_a_contract() -> None:
    for name, backends in OPS.items():
        module, function = backends["reference"].split(":")
        assert module.endswith(f".{name}")
        assert getattr(import_module(module), function).__doc__


def test_bfloat16_logits_are_not_rounded_to_bfloat16() -> None:
    logits = lm_head(random(3, 24, dtype=torch.bfloat16), DenseWeight(random(64, 24, dtype=torch.bfloat16, seed=1)))
    assert not torch.equal(logits, logits.bfloat16().float())


def test_ops_take_an_empty_batch() -> None:
    assert lm_head(torch.empty(0, 24), DenseWeight(torch.empty(50, 24))).shape == (0, 50)
