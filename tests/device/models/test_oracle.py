"""Every architecture against Transformers in float32: logits at every position, whatever the chunks and the batch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from octavo.device.models.table import MODELS
from octavo.words.kv_cache_spec import FullAttentionSpec
from tests.device.models.paged import PagedRun, load_tiny_model
from tests.tiny_models import ARCHITECTURES, VOCAB_SIZE, WINDOW, oracle, oracle_logits, save_tiny_model

LENGTHS = (1, 5, 70, 41)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    numbers = random.Random(seed)
    return [[numbers.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in lengths]


def assert_same_logits(ours: Tensor, theirs: Tensor) -> None:
    scale = theirs.abs().max()
    assert (ours - theirs).abs().max() <= 1e-4 * max(1.0, float(scale))
    top = theirs.topk(2, dim=-1).values
    clear = top[:, 0] - top[:, 1] > 1e-3
    assert clear.any()
    assert torch.equal(ours.argmax(-1)[clear], theirs.argmax(-1)[clear])


KERNELS = ("reference", "native")


@pytest.fixture(scope="module", params=[(name, kernels) for name in ARCHITECTURES for kernels in KERNELS], ids="-".join)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, list[Tensor]]:
    architecture, kernels = request.param
    if kernels == "native":
        pytest.importorskip("octavo._native", reason="built without the native module")
    folder = save_tiny_model(tmp_path_factory.mktemp(architecture), architecture)
    theirs = oracle(folder)
    return load_tiny_model(folder, kernels=kernels), [oracle_logits(theirs, tokens) for tokens in prompts(*LENGTHS)]


ENCODERS = {"bert", "roberta", "distilbert"}
"""Those that generate nothing: tests/e2e/test_pooling.py holds them to Transformers."""


def test_every_architecture_has_an_oracle() -> None:
    assert set(ARCHITECTURES) | ENCODERS == set(MODELS)


@pytest.mark.parametrize("chunk", [1, 7, 16, 1000])
def test_logits_match_transformers_however_prompts_are_chunked(
    pair: tuple[nn.Module, list[Tensor]], chunk: int
) -> None:
    model, expected = pair
    for ours, theirs in zip(PagedRun(model, prompts(*LENGTHS)).run(chunk), expected, strict=True):
        assert_same_logits(ours, theirs)


def test_prefill_chunk_and_decode_share_a_step(pair: tuple[nn.Module, list[Tensor]]) -> None:
    model, expected = pair
    run = PagedRun(model, prompts(*LENGTHS), block_size=16, seed=3)
    first = run.step([0, 4, 30, 0])
    second = run.step([1, 1, 33, 41])
    assert_same_logits(second[0], expected[0])
    assert_same_logits(torch.cat((first[1], second[1])), expected[1])
    assert_same_logits(torch.cat((first[2], second[2])), expected[2][:63])
    assert_same_logits(second[3], expected[3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_native_logits_are_bitwise_the_same_in_any_batch_chunks_and_blocks(
    architecture: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    pytest.importorskip("octavo._native", reason="built without the native module")
    model = load_tiny_model(save_tiny_model(tmp_path, architecture), dtype=dtype, kernels="native")
    alone = [PagedRun(model, [tokens]).run(1000)[0] for tokens in prompts(*LENGTHS)]
    for chunk, block_size in ((1, 16), (7, 32), (16, 64), (1000, 16)):
        together = PagedRun(model, prompts(*LENGTHS), block_size=block_size, seed=chunk).run(chunk)
        assert all(map(torch.equal, together, alone))


def test_windows_are_exercised() -> None:
    assert max(LENGTHS) > 2 * WINDOW


def logits_of(folder: Path, tokens: list[int], **model: Any) -> tuple[Tensor, Tensor]:
    ours = PagedRun(load_tiny_model(folder, **model), [tokens]).run(16)[0]
    return ours, oracle_logits(oracle(folder), tokens)


@pytest.mark.parametrize(
    "overrides",
    [
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ],
    ids=lambda overrides: overrides["rope_type"],
)
def test_scaled_rotary_embeddings_match_on_both_sides_of_the_original_length(
    tmp_path: Path, overrides: dict[str, Any]
) -> None:
    rope = {"rope_theta": 10_000.0, **overrides}
    folder = save_tiny_model(tmp_path, "llama", max_position_embeddings=128, rope_parameters=rope)
    ours, theirs = logits_of(folder, prompts(90)[0])
    assert_same_logits(ours[:32], theirs[:32])
    assert_same_logits(ours[32:], theirs[32:])


def test_dynamic_rope_is_the_unscaled_one_where_the_engine_stays_within_the_original_length(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    folder = save_tiny_model(tmp_path, "llama", max_position_embeddings=64, rope_parameters=rope)
    assert_same_logits(*logits_of(folder, prompts(60)[0], max_model_len=64))


def test_dynamic_rope_is_fixed_by_the_engines_length(tmp_path: Path) -> None:
    """Transformers scales by the sequence it sees: a sequence as long as the engine allows is the same thing."""
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    folder = save_tiny_model(tmp_path, "llama", max_position_embeddings=64, rope_parameters=rope)
    assert_same_logits(*logits_of(folder, prompts(100)[0], max_model_len=100))


def test_qwen2_upper_layers_slide_where_the_checkpoint_asks_for_it(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path, "qwen2", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1)
    model = load_tiny_model(folder)
    windows = [getattr(spec, "sliding_window", None) for spec in model.kv_cache_specs().values()]
    assert windows == [None, WINDOW, WINDOW]
    ours = PagedRun(model, prompts(70)).run(16)[0]
    assert_same_logits(ours, oracle_logits(oracle(folder), prompts(70)[0]))


def test_llama_biases_and_an_untied_head_match(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path, "llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=False)
    assert_same_logits(*logits_of(folder, prompts(40)[0]))


def test_gemma_states_a_window_in_five_layers_of_six(tmp_path: Path) -> None:
    specs = load_tiny_model(save_tiny_model(tmp_path, "gemma3")).kv_cache_specs()
    full = [name for name, spec in specs.items() if isinstance(spec, FullAttentionSpec)]
    assert full == ["layers.5.attention"]
    assert {spec.sliding_window for name, spec in specs.items() if name not in full} == {WINDOW}
