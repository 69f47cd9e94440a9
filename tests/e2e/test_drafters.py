"""Every drafter beside everything it may meet: answers are, to the bit, those of an engine without it.

Counters prove that drafts were right in each case. The drafters of a random model are random ones too, or the model
itself with noise in its weights; only four tokens are allowed, so that even a random guess is sometimes right.
"""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from octavo import LLM, LoRARequest, RequestOutput, SamplingParams, StructuredOutputParams
from octavo.words.errors import ConfigError
from tests.drafters import save_eagle_head, save_medusa_heads, save_noisy_copy
from tests.e2e.test_speculation import FEW, ask, metric, said
from tests.tiny_adapters import save_tiny_adapter
from tests.tiny_models import save_tiny_model

PREFIX = [7, 3, 9, 2] * 12
PROMPTS = [[5, 6, 7, 8] * 6 + [5, 6], [*PREFIX, 4], [*PREFIX, 11, 12], [3]]


@pytest.fixture(scope="module")
def options(succ: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A random model with a tokenizer."""
    folder = save_tiny_model(tmp_path_factory.mktemp("tiny") / "model", "llama")
    shutil.copy(succ / "tokenizer.json", folder)
    sizes = {"max_model_len": 128, "block_size": 16, "num_gpu_blocks_override": 200}
    return {"model": str(folder), "dtype": "float32", "max_logprobs": -1, **sizes}


@pytest.fixture(scope="module")
def plain(options: dict[str, Any]) -> Iterator[LLM]:
    with LLM(**options) as llm:
        yield llm


SAVED: dict[str, Callable[[Path, Path], Path]] = {
    "draft_model": save_noisy_copy,
    "eagle": save_eagle_head,
    "medusa": save_medusa_heads,
}


@pytest.fixture(scope="module", params=SAVED)
def drafting(
    request: pytest.FixtureRequest, options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The same model with a drafter."""
    drafter = SAVED[request.param](Path(options["model"]), tmp_path_factory.mktemp("drafter"))
    asked = {"speculative_method": request.param, "speculative_model": str(drafter), "num_speculative_tokens": 4}
    return {**options, **asked, "adaptive_speculation": False}


@pytest.fixture(scope="module")
def speculating(drafting: dict[str, Any]) -> Iterator[LLM]:
    with LLM(**drafting) as llm:
        yield llm


def num_right(llm: LLM) -> float:
    return metric(llm, "vllm:spec_decode_num_accepted_tokens")


STYLES: dict[str, Callable[[LLM], list[RequestOutput]]] = {
    "greedy": partial(ask, prompts=PROMPTS),
    "sampling": partial(ask, prompts=PROMPTS, temperature=0.7, seed=3, top_p=0.9),
    "penalties": partial(ask, prompts=PROMPTS, repetition_penalty=1.02, presence_penalty=0.05),
    "stop strings": partial(ask, prompts=PROMPTS, temperature=1.0, seed=8, stop=["bad", "cc"]),
    "three choices": partial(ask, prompts=PROMPTS, temperature=0.6, seed=6, n=3),
    "structured": partial(ask, prompts=PROMPTS, structured_outputs=StructuredOutputParams(regex="(a|bc|d){8,30}")),
}


@pytest.mark.parametrize("style", STYLES)
def test_answers_and_logprobs_are_those_without_drafts(plain: LLM, speculating: LLM, style: str) -> None:
    before = num_right(speculating)
    assert said(STYLES[style](speculating)) == said(STYLES[style](plain))
    assert num_right(speculating) > before
    (counters,) = speculating.collective_rpc("graph_counters")
    assert (counters["drafter_replays"] > 0) == (speculating.info.plan.speculative_method != "medusa")


WAYS: dict[str, dict[str, Any]] = {
    "chunks": {"max_num_batched_tokens": 7, "max_num_seqs": 3},
    "little room": {"num_gpu_blocks_override": 10, "max_num_seqs": 4},
    "plain steps": {"enforce_eager": True},
    "one draft": {"num_speculative_tokens": 1},
    "another process": {"multiprocess": True},
    "adapting": {"adaptive_speculation": True, "max_burst_ms": 1000.0},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_same_however_the_engine_runs(drafting: dict[str, Any], plain: LLM, way: str) -> None:
    with LLM(**{**drafting, **WAYS[way]}) as llm:
        for style in ("greedy", "sampling"):
            assert said(STYLES[style](llm)) == said(STYLES[style](plain))
        # How many drafts are worth their time is the machine's business.
        assert num_right(llm) > 0 or way == "adapting"
        assert metric(llm, "vllm:num_preemptions") > 0 or way != "little room"
        assert metric(llm, "octavo:num_bursts") > 0 or way != "adapting"


def test_a_prefix_from_the_cache_is_known_to_the_drafter_too(drafting: dict[str, Any], plain: LLM) -> None:
    with LLM(**drafting) as llm:
        first, again = ask(llm, PROMPTS[1:3]), ask(llm, PROMPTS[1:3])
        hits = metric(llm, "vllm:prefix_cache_hits")
    assert said(first) == said(again) == said(ask(plain, PROMPTS[1:3]))
    assert hits >= 2 * 48, "the prompts' common blocks"
    right = [[output.metrics.num_accepted_tokens for output in each if output.metrics] for each in (first, again)]
    assert right[0] == right[1] and sum(right[0]) > 0


def test_drafts_leave_room_at_the_end_of_the_context(drafting: dict[str, Any], plain: LLM) -> None:
    with LLM(**drafting) as llm:
        assert said(ask(llm, max_tokens=500)) == said(ask(plain, max_tokens=500))


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"speculative_method": "draft_model"}, "draft_model needs a speculative_model"),
        ({"speculative_model": "x"}, "drafts nothing with speculative_method=none"),
        (
            {"speculative_method": "ngram", "speculative_model": "x"},
            "speculative_model=x drafts nothing with speculative_method=ngram: say draft_model, or drop it",
        ),
        (
            {"speculative_method": "ngram,draft_model", "speculative_model": "x"},
            "speculative_method='ngram,draft_model'.*none, ngram, draft_model, eagle, medusa",
        ),
    ],
)
def test_a_method_and_its_model_come_together_and_two_methods_do_not(
    succ: Path, asked: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        LLM(str(succ), **asked)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("exchanged", [False, True])
def test_a_draft_model_must_mean_the_same_by_every_token(
    options: dict[str, Any], tmp_path: Path, exchanged: bool
) -> None:
    drafter = save_noisy_copy(Path(options["model"]), tmp_path)
    tokenizer = json.loads((Path(options["model"]) / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    if exchanged:
        vocabulary["P"], vocabulary["Q"] = vocabulary["Q"], vocabulary["P"]
    (drafter / "tokenizer.json").write_text(json.dumps(tokenizer))
    asked = {**options, "speculative_method": "draft_model", "speculative_model": str(drafter)}
    if exchanged:
        with pytest.raises(ConfigError, match=r"token 80 is 'Q' there and 'P' here; take one of the same family"):
            LLM(**asked)
    else:
        LLM(**asked).close()


def test_rejection_sampling_leaves_greedy_answers_as_they_are(drafting: dict[str, Any], plain: LLM) -> None:
    with LLM(**drafting, speculative_verification="rejection") as llm:
        assert said(ask(llm, PROMPTS)) == said(ask(plain, PROMPTS))
        assert num_right(llm) > 0


def test_the_base_model_drafts_for_adapters_and_embeddings(
    drafting: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    """A drafter sees neither: it guesses what the base model would say, and the model judges that."""
    model = Path(options["model"])
    folders = [save_tiny_adapter(tmp_path / str(seed), model, seed=seed, size=0.1) for seed in (1, 2)]
    adapters = [LoRARequest(folder.name, 1, str(folder)) for folder in folders]
    rows = load_file(model / "model.safetensors")["model.embed_tokens.weight"][PROMPTS[1]]
    prompts: list[Any] = [{"prompt_token_ids": PROMPTS[1]}] * 3 + [{"prompt_embeds": rows}] * 2
    params = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True, logprobs=2, allowed_token_ids=FEW)

    def answer(llm: LLM) -> list[RequestOutput]:
        asked = [None, *adapters, None, adapters[0]]
        return llm.generate(prompts, params, use_tqdm=False, lora_request=asked)

    more = {"enable_lora": True, "max_loras": 2, "enable_prompt_embeds": True}
    with LLM(**options, **more) as llm:
        wanted = said(answer(llm))
    with LLM(**drafting, **more) as llm:
        outputs = answer(llm)
        assert num_right(llm) == sum(output.metrics.num_accepted_tokens for output in outputs if output.metrics)
        (counters,) = llm.collective_rpc("adapter_counters")
    assert said(outputs) == wanted
    assert len({str(each) for each in wanted}) == 3, "embeddings are those of the prompt's tokens"
    assert all(output.metrics and output.metrics.num_draft_tokens > 0 for output in outputs)
    assert sum(output.metrics.num_accepted_tokens for output in outputs if output.metrics) > 0
    assert counters["rows"] > 3 * len(PROMPTS[1])


FOUR_ARE_ALLOWED = 16.3
"""The 99.9 % point of chi-square with 3 degrees of freedom."""


def test_rejection_sampling_leaves_the_distribution_as_it_is(drafting: dict[str, Any], plain: LLM) -> None:
    """Of the second token, which is a draft or what stands in its place, summed over the first."""
    prompt, num_answers = [5, 6, 7], 1200

    def chances(tokens: list[int]) -> dict[int, float]:
        (output,) = ask(plain, [tokens], max_tokens=1, temperature=1.0, seed=1, logprobs=-1)
        weights = {token: math.exp(output.outputs[0].logprobs[0][token].logprob) for token in FEW}
        return {token: weight / sum(weights.values()) for token, weight in weights.items()}

    first = chances(prompt)
    after = {token: chances([*prompt, token]) for token in FEW}
    expected = {token: sum(first[before] * after[before][token] for before in FEW) for token in FEW}
    options = {**drafting, "num_speculative_tokens": 1, "max_num_seqs": 64}
    with LLM(**options, speculative_verification="rejection") as llm:
        (output,) = ask(llm, [prompt], max_tokens=3, temperature=1.0, seed=11, n=num_answers, logprobs=None)
        assert num_right(llm) > 0
    counts = Counter(choice.token_ids[1] for choice in output.outputs)
    found = sum((counts[token] - num_answers * p) ** 2 / (num_answers * p) for token, p in expected.items())
    assert found < FOUR_ARE_ALLOWED
