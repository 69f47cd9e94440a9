"""Real weights against Transformers in float32, which loads the same GGUF file.

Teacher-forced: Transformers is shown our prompt and our answer in one pass, and every position must agree. Where ids
could differ by rounding (two best logits closer than 1e-3), either of the two is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM, GgufConfig, PreTrainedModel

from octavo import LLM, RequestOutput, SamplingParams
from octavo.checkpoint.resolve import resolve_model
from tests.device.models.paged import PagedRun, load_tiny_model

NUM_OUTPUT = 48
TOP = 5
TOLERANCE = 2e-3
PROMPTS = (
    "The",
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time there was a lighthouse keeper who",
    "2 + 2 = 4\n3 + 3 = 6\n4 + 4 =",
    "Zürich, 東京 and 🦙 are",
)
LONG_TEXT = "The quick brown fox jumps over the lazy dog while the sea keeps its own slow count of the days. "
CHAT = [{"role": "user", "content": "Name three fruits."}]


class Pair(NamedTuple):
    """One model in both engines."""

    ours: LLM
    reference: PreTrainedModel


@pytest.fixture(scope="module")
def pair(real_model: str) -> Iterator[Pair]:
    path = resolve_model(real_model).path
    reference = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
        attn_implementation="eager",
    ).eval()
    with LLM(real_model, dtype="float32", quantization="none", max_model_len=1024, block_size=16) as ours:
        yield Pair(ours, reference)


def check_against_reference(pair: Pair, outputs: list[RequestOutput]) -> None:
    for output in outputs:
        answer = list(output.outputs[0].token_ids)
        expected = reference_logprobs(pair.reference, output.prompt_token_ids + answer)
        rows = list(output.prompt_logprobs or [])[1:] + list(output.outputs[0].logprobs or [])
        assert len(rows) == len(expected) - 1
        for position, row in enumerate(rows):
            for token_id, candidate in row.items():
                assert candidate.logprob == pytest.approx(expected[position, token_id].item(), abs=TOLERANCE), position
        check_choices(answer, expected[len(output.prompt_token_ids) - 1 :])


def check_choices(answer: list[int], expected: torch.Tensor) -> None:
    for token_id, logprobs in zip(answer, expected, strict=False):
        best = logprobs.topk(2)
        if best.values[0] - best.values[1] > 1e-3:
            assert token_id == best.indices[0]
        else:
            assert token_id in best.indices


def reference_logprobs(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """[num_tokens, vocab_size]: row i is about token i + 1."""
    return reference_logits(model, token_ids).log_softmax(-1)


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([token_ids]), use_cache=False).logits[0].float()


@pytest.fixture(scope="module")
def answers(pair: Pair) -> list[RequestOutput]:
    params = SamplingParams(
        temperature=0, max_tokens=NUM_OUTPUT, ignore_eos=True, logprobs=TOP, prompt_logprobs=TOP
    )  # fmt: skip
    long_prompt = pair.ours.get_tokenizer().encode(LONG_TEXT * 40)[:600]
    one_token = [long_prompt[-1]]
    prompts = [*PROMPTS, {"prompt_token_ids": long_prompt}, {"prompt_token_ids": one_token}]
    return pair.ours.generate(prompts, params, use_tqdm=False)


def test_every_position_agrees(pair: Pair, answers: list[RequestOutput]) -> None:
    lengths = [len(output.prompt_token_ids) for output in answers]
    assert 1 in lengths
    assert 600 in lengths
    assert all(len(output.outputs[0].token_ids) == NUM_OUTPUT for output in answers)
    check_against_reference(pair, answers)


def test_a_chat_prompt_agrees(pair: Pair) -> None:
    if pair.ours.get_tokenizer().chat_template is None:
        pytest.skip("a base model: it has no chat template")
    params = SamplingParams(temperature=0, max_tokens=NUM_OUTPUT, ignore_eos=True, logprobs=TOP, prompt_logprobs=TOP)
    check_against_reference(pair, pair.ours.chat(CHAT, params, use_tqdm=False))


def test_logits_agree_at_every_position(real_model: str, pair: Pair, answers: list[RequestOutput]) -> None:
    """The whole vocabulary, not only the best candidates; chunked, so that the cache is read back."""
    model = load_tiny_model(Path(real_model), max_model_len=1024)
    for output in answers:
        token_ids = output.prompt_token_ids + list(output.outputs[0].token_ids)
        (ours,) = PagedRun(model, [token_ids]).run(chunk=100)
        expected = reference_logits(pair.reference, token_ids)
        torch.testing.assert_close(ours, expected, rtol=0, atol=TOLERANCE)
