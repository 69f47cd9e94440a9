"""A constant taken off all stored keys changes nothing but how well they are stored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from octavo.device.layers.attention import attention_layers
from tests.device.models.paged import PagedRun, load_tiny_model
from tests.tiny_models import save_tiny_model

PROMPTS = [list(range(3, 43)), list(range(60, 71))]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("qwen2"), "qwen2")


def logits(model: nn.Module) -> Tensor:
    return torch.cat(PagedRun(model, PROMPTS).run(chunk=16))


def key_cache(model: nn.Module) -> Tensor:
    return next(iter(attention_layers(model).values())).kv_cache.nan_to_num()


@pytest.mark.parametrize("kernels", ["reference", "native"])
def test_an_offset_of_keys_changes_no_logits(qwen2: Path, kernels: str) -> None:
    if kernels == "native":
        pytest.importorskip("octavo._native", reason="built without the native module")
    model = load_tiny_model(qwen2, kernels=kernels)
    expected, plain_keys = logits(model), key_cache(model)
    for layer in attention_layers(model).values():
        layer.key_offset = torch.linspace(-3, 3, layer.options.num_kv_heads * 8).view(-1, 8)
    torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-4)
    assert (key_cache(model) - plain_keys).abs().max() > 1


def test_int8_keys_keep_their_steps_beside_a_large_bias(qwen2: Path) -> None:
    plain, whole = load_tiny_model(qwen2), load_tiny_model(qwen2, kv_cache_dtype=torch.int8)
    for model in (plain, whole):
        for layer in model.layers:
            layer.attention.qkv.bias.view(-1, 8)[14:16, [3, 7]] *= 300  # of two key heads, what turns slowest
            layer.attention.model_loaded()
    expected = logits(plain)
    with_offset = (logits(whole) - expected).abs().mean()
    for layer in attention_layers(whole).values():
        layer.key_offset = None
    assert with_offset < (logits(whole) - expected).abs().mean() / 2


@pytest.mark.parametrize(
    ("architecture", "kv_cache_dtype", "has_offset"),
    [
        ("qwen2", torch.int8, True),
        ("qwen2", torch.bfloat16, True),
        ("qwen2", torch.float32, False),
        ("llama", torch.int8, False),
    ],
)
def test_only_keys_with_a_bias_and_few_steps_are_moved(
    tmp_path: Path, architecture: str, kv_cache_dtype: torch.dtype, has_offset: bool
) -> None:
    model = load_tiny_model(save_tiny_model(tmp_path, architecture), kv_cache_dtype=kv_cache_dtype)
    assert {layer.key_offset is not None for layer in attention_layers(model).values()} == {has_offset}
