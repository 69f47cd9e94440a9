"""Weights that stay in a few bits: the file's own numbers, once in memory, from the file to the packed form."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from octavo.checkpoint.facts import read_model_facts
from octavo.checkpoint.resolve import resolve_model
from octavo.config.flat import config_from_kwargs
from octavo.device.layers.linear import Linear
from octavo.device.layers.quantization.native_quantized import NativeQuantized
from octavo.device.loader.dummy import dummy_values
from octavo.device.loader.load import load_weights
from octavo.device.ops.kernels import load_kernels
from octavo.device.ops.native.quantized import StoredRows
from octavo.device.platform.detect import detect_caps
from octavo.device.worker.build import build_empty_model, build_kernels
from octavo.device.worker.memory import parameter_bytes
from octavo.plan.planner import make_plan
from tests.checkpoint.gguf_bytes import Info
from tests.checkpoint.test_facts import gguf_facts
from tests.device.models.paged import PagedRun, load_tiny_model
from tests.memory import anonymous_bytes
from tests.tiny_models import ARCHITECTURES, VOCAB_SIZE, save_tiny_model

pytest.importorskip("octavo._native", reason="built without the native module")

LOGIT_TOLERANCE = 0.15
"""Of the largest logit, as docs/quantization.md states it for models of random weights."""
REAL_LOGIT_TOLERANCE = 0.08


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def empty_model(name: str, quantization: str | None) -> nn.Module:
    config = config_from_kwargs(model=name, quantization=quantization, dtype="float32", max_model_len=64)
    facts = read_model_facts(resolve_model(name))
    plan = make_plan(config, facts, detect_caps("cpu"))
    return build_empty_model(plan, facts, build_kernels(plan))


def loaded(name: str, quantization: str | None) -> nn.Module:
    model = empty_model(name, quantization)
    load_weights(model, resolve_model(name))
    return model


def matrices(model: nn.Module) -> dict[str, torch.Tensor]:
    """Every weight matrix as numbers."""
    operands = {name: module.packed for name, module in model.named_modules() if hasattr(module, "packed")}
    return {name: packed.rows(torch.arange(packed.out_features)) for name, packed in operands.items()}


def test_a_gguf_model_holds_the_numbers_it_is_dequantised_to(smollm2: str) -> None:
    """Stacks of q, k, v and of gate and up, rows of rotary heads put in order, and the tied embedding."""
    own, dense = matrices(loaded(smollm2, None)), matrices(loaded(smollm2, "none"))
    assert len(own) == 4 * 30 + 1
    assert own.keys() == dense.keys()
    assert all(torch.equal(own[name], dense[name]) for name in own)


def logits(model: nn.Module, vocab_size: int) -> torch.Tensor:
    """Of one prompt that stands in shuffled blocks."""
    tokens = torch.randint(3, vocab_size, (40,), generator=torch.Generator().manual_seed(8)).tolist()
    return PagedRun(model, [tokens]).run(16)[0]


def dequantized(folder: Path, held: dict[str, torch.Tensor]) -> nn.Module:
    """The plain model in float32, with the numbers that the quantised one holds."""
    model = load_tiny_model(folder)
    for name, matrix in held.items():
        model.get_submodule(name).weight.data.copy_(matrix)
    return model


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_logits_are_those_of_the_dequantised_weights_within_the_tolerance_that_is_stated(
    quantization: str, architecture: str, tmp_path: Path
) -> None:
    """Case QU02: all that is lost beside the weights is the eight bits of the activations."""
    folder = save_tiny_model(tmp_path, architecture)
    model = loaded(str(folder), quantization)
    ours, theirs = logits(model, VOCAB_SIZE), logits(dequantized(folder, matrices(model)), VOCAB_SIZE)
    unquantized = logits(load_tiny_model(folder), VOCAB_SIZE)
    largest = theirs.abs().max()
    assert 0 < (ours - theirs).abs().max() <= LOGIT_TOLERANCE * largest
    if quantization == "int4":  # the weights' own loss is more than that
        assert (unquantized - theirs).abs().max() > LOGIT_TOLERANCE * largest


def test_logits_of_a_real_file_in_its_own_formats_are_those_of_its_numbers(smollm2: str) -> None:
    own, dense = (logits(loaded(smollm2, quantization), 40_000) for quantization in ("gguf", "none"))
    assert 0 < (own - dense).abs().max() <= REAL_LOGIT_TOLERANCE * dense.abs().max()


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize(("quantization", "worst"), [("int8", 0.01), ("int4", 0.12)])
def test_a_checkpoint_is_quantised_at_load(quantization: str, worst: float, architecture: str, tmp_path: Path) -> None:
    name = str(save_tiny_model(tmp_path, architecture))
    held, exact = matrices(loaded(name, quantization)), matrices(loaded(name, "none"))
    assert exact.keys() <= held.keys()
    for each, matrix in exact.items():
        error = (held[each] - matrix).abs() / matrix.abs().amax(1, keepdim=True)
        assert 0 < error.max() < worst


def test_dummy_weights_are_quantised_too(tmp_path: Path) -> None:
    name = str(save_tiny_model(tmp_path, "llama"))
    model = empty_model(name, "int8")
    load_weights(model, resolve_model(name), load_format="dummy", seed=3)
    held = matrices(model)["layers.0.mlp.down"]
    expected = dummy_values("layers.0.mlp.down.weight", held.shape, seed=3)
    torch.testing.assert_close(held, expected, rtol=0, atol=expected.abs().max().item() / 200)


class Stored(nn.Module):
    """A layer given rows by hand."""

    def __init__(self, out_features: int, format: str | None = None) -> None:
        super().__init__()
        kernels = load_kernels("native")
        method = NativeQuantized(kernels.native, "gguf", format)
        self.linear = Linear(256, out_features, bias=False, dtype=torch.float32, method=method, kernels=kernels)

    def finish(self, *stack: StoredRows) -> torch.Tensor:
        self.linear.load_rows(stack)
        self.linear.finish_loading()
        return self.linear.operand.rows(torch.arange(self.linear.out_features))


def test_types_without_kernels_become_q8_0_and_floats_stay_dense() -> None:
    weight = torch.randn(6, 256, generator=torch.Generator().manual_seed(1))
    half = StoredRows("F16", weight.half().view(torch.uint8).numpy(), np.arange(6)[::-1].copy())
    assert torch.equal(Stored(6).finish(half), weight.half().float().flip(0))
    rows = np.random.default_rng(0).integers(0, 255, (6, 84), dtype=np.uint8)
    rows.reshape(-1, 84)[:, [81, 83]] = 0x20  # scales near 0.01
    exact = torch.empty(6, 256)
    load_kernels("native").native.library.dequantize("Q2_K", rows, exact)
    mixed = Stored(12).finish(StoredRows("Q2_K", rows), half)
    torch.testing.assert_close(mixed[:6], exact, rtol=0, atol=exact.abs().max().item() / 200)
    torch.testing.assert_close(mixed[6:], weight.flip(0), rtol=0, atol=weight.abs().max().item() / 200)


def test_a_real_file_takes_little_more_memory_than_on_disk(smollm2: str) -> None:
    """Rows of rotary tables aside, which are no weights of the file."""
    stored = sum(tensor.nbytes for tensor in resolve_model(smollm2).gguf.tensors.values())
    assert 0.95 * stored <= parameter_bytes(loaded(smollm2, None)) <= 1.05 * stored


def test_types_without_kernels_are_told_when_the_model_is_built(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    facts = gguf_facts(tmp_path, [Info("blk.0.ffn_down.weight", (256, 64), bytes(64 * 84), kind=10)])
    plan = make_plan(config_from_kwargs(model=str(tmp_path / "m.gguf")), facts, detect_caps("cpu"))
    with caplog.at_level(logging.INFO, "octavo"):
        build_empty_model(plan, facts, build_kernels(plan))
    assert "Q2_K, for which there are no kernels, as Q8_0" in caplog.text


@contextmanager
def anonymous_growth() -> Iterator[Callable[[], int]]:
    """Bytes by which the process's anonymous memory was ever above what it was at the start, sampled."""
    start = peak = anonymous_bytes()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, anonymous_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: max(peak, anonymous_bytes()) - start
    finally:
        done.set()
        thread.join()


@pytest.mark.skipif("libasan" in Path("/proc/self/maps").read_text(), reason="the sanitizer keeps what is freed")
@pytest.mark.parametrize("quantization", [None, "int8", "none"])
def test_loading_takes_little_more_memory_than_the_packed_weights(smollm2: str, quantization: str | None) -> None:
    checkpoint = resolve_model(smollm2)
    load_weights(empty_model(smollm2, quantization), checkpoint)  # what is allocated once is there now
    model = empty_model(smollm2, quantization)
    with anonymous_growth() as grown:
        load_weights(model, checkpoint)
        largest = max(tensor.nbytes for tensor in checkpoint.gguf.tensors.values())
        assert 0.9 * parameter_bytes(model) <= grown() <= 1.25 * parameter_bytes(model) + largest
