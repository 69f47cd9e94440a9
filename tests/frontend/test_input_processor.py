from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.checkpoint.facts import read_model_facts
from octavo.checkpoint.generation_config import GenerationConfig, read_generation_config
from octavo.checkpoint.resolve import resolve_model
from octavo.config.engine_config import EngineConfig
from octavo.config.model import ModelConfig
from octavo.config.scheduler import SchedulerConfig
from octavo.frontend.input_processor import InputProcessor
from octavo.frontend.load_tokenizer import load_tokenizer
from octavo.frontend.prompt_reader import prompt_text
from octavo.frontend.sampling_resolver import OperatingSystemSeeds
from octavo.words.errors import RequestError
from octavo.words.sampling_params import SamplingParams
from tests.succ import EOS, EOT

MAX_MODEL_LEN = 64


def make_processor(
    model: str,
    *,
    generation_config: GenerationConfig | None = None,
    max_model_len: int = MAX_MODEL_LEN,
    policy: str = "priority",
    **options: Any,
) -> InputProcessor:
    checkpoint = resolve_model(model)
    return InputProcessor(
        load_tokenizer(checkpoint),
        read_model_facts(checkpoint),
        generation_config or read_generation_config(checkpoint),
        EngineConfig(model=ModelConfig(model=model, **options), scheduler=SchedulerConfig(scheduling_policy=policy)),
        max_model_len,
    )


@pytest.fixture(scope="module")
def processor(succ: Path) -> InputProcessor:
    return make_processor(str(succ))


def params_of(processor: InputProcessor, **params: Any) -> Any:
    return processor.prepare("r", "A", SamplingParams(**params)).choices[0].sampling


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("AB", "AB"),
        ([65, 66], None),
        ((65, 66), None),
        (np.array([65, 66]).tolist(), None),
        ([np.int64(65), np.int32(66)], None),
        ({"prompt": "AB"}, "AB"),
        ({"prompt_token_ids": [65, 66]}, None),
        ({"prompt_token_ids": [65, 66], "prompt": "anything"}, "anything"),
    ],
)
def test_every_form_of_prompt_comes_to_its_token_ids(processor: InputProcessor, prompt: Any, text: str | None) -> None:
    (request,) = processor.prepare("r", prompt, SamplingParams()).choices
    assert request.prompt_token_ids == [65, 66]
    assert {type(token_id) for token_id in request.prompt_token_ids} == {int}
    assert prompt_text(prompt) == text


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([10**6], "1000000"),
        ([-1], "-1"),
        ([320], "320.*0 to 319"),
        ([2**40], str(2**40)),
        ([1.5], "1.5"),
        (["a", 5], "'a'"),
        ([True], "True"),
        ([None], "None"),
        ([[1]], "integers"),
        ({"prompt_token_ids": "AB"}, "list of integers"),
        ({"prompt_token_ids": 5}, "list of integers"),
        ({"prompt": 5}, "must be text"),
        ({}, "needs prompt"),
        ({"prompt": None}, "needs prompt"),
        ({"prompt": "A", "prompts": "B"}, "no prompts"),
        ({"prompt": "A", "cache_salt": ""}, "cache_salt"),
        ({"prompt": "A", "cache_salt": 5}, "cache_salt"),
        ({"prompt": "A", "cache_salt": "\ud800"}, "cache_salt"),
        ({"prompt": "A", "priority": "high"}, "priority"),
        ({"prompt": "A", "priority": 2**40}, "priority"),
        (5, "got int"),
        (None, "got NoneType"),
        (b"A", "got bytes"),
        ("", "empty"),
        ([], "empty"),
        ("A\ud83e", "surrogate"),
    ],
)
def test_a_wrong_prompt_is_a_request_error_that_names_what_is_wrong(
    processor: InputProcessor, prompt: Any, said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        processor.prepare("r", prompt, SamplingParams())


@pytest.mark.parametrize("params", [{"temperature": 0}, "greedy", 3])
def test_parameters_of_another_type_are_refused(processor: InputProcessor, params: Any) -> None:
    with pytest.raises(RequestError, match="sampling_params must be SamplingParams"):
        processor.prepare("r", "A", params)


def test_the_last_id_of_the_vocabulary_is_the_last_that_passes(smollm2: str) -> None:
    processor = make_processor(smollm2)
    assert processor.prepare("r", [49151], SamplingParams()).choices[0].prompt_token_ids == [49151]
    with pytest.raises(RequestError, match="49152"):
        processor.prepare("r", [49152], SamplingParams())


def test_a_prompt_must_leave_room_for_one_token(processor: InputProcessor) -> None:
    longest = processor.prepare("r", [65] * (MAX_MODEL_LEN - 1), SamplingParams(max_tokens=None)).choices[0]
    assert longest.sampling.max_tokens == 1
    for length in (MAX_MODEL_LEN, MAX_MODEL_LEN + 1):
        with pytest.raises(RequestError, match=f"^This model's maximum context length is {MAX_MODEL_LEN} tokens\\."):
            processor.prepare("r", [65] * length, SamplingParams())


@pytest.mark.parametrize(("asked", "given"), [(None, 63), (5, 5), (63, 63), (64, 63), (10**6, 63)])
def test_max_tokens_is_what_fits(processor: InputProcessor, asked: int | None, given: int) -> None:
    assert params_of(processor, max_tokens=asked).max_tokens == given


def test_eos_ids_of_all_sources_are_merged_and_ignored_on_request(processor: InputProcessor) -> None:
    assert params_of(processor).eos_token_ids == (EOS, EOT)
    assert params_of(processor, ignore_eos=True).eos_token_ids == ()
    assert params_of(processor).num_text_tokens == 259


def test_the_models_defaults_serve_a_request_without_parameters_unless_ours_are_asked_for(succ: Path) -> None:
    own = GenerationConfig(defaults={"temperature": 0.5, "top_k": 7, "max_tokens": 9})
    model = make_processor(str(succ), generation_config=own).prepare("r", "A", None).choices[0].sampling
    assert (model.params.temperature, model.params.top_k, model.max_tokens) == (0.5, 7, 9)
    checkpoint = resolve_model(str(succ))
    config = EngineConfig(model=ModelConfig(model=str(succ), generation_config="octavo"))
    plain = InputProcessor(load_tokenizer(checkpoint), read_model_facts(checkpoint), own, config, MAX_MODEL_LEN)
    assert plain.default_sampling_params() == SamplingParams()


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids"])
@pytest.mark.parametrize("token_id", [-1, 320, 10**12])
def test_ids_in_parameters_must_be_in_the_vocabulary(processor: InputProcessor, name: str, token_id: int) -> None:
    assert params_of(processor, **{name: [69]})
    with pytest.raises(RequestError, match=f"{name}.*{token_id}"):
        params_of(processor, **{name: [69, token_id]})


def test_logit_bias_keys_must_be_in_the_vocabulary(processor: InputProcessor) -> None:
    assert params_of(processor, logit_bias={66: -100.0}).params.logit_bias == {66: -100.0}
    assert params_of(processor, logit_bias={}).params.logit_bias == {}
    for token_id in (-1, 320):
        with pytest.raises(RequestError, match=f"logit_bias.*{token_id}"):
            params_of(processor, logit_bias={token_id: 1.0})


def test_bad_words_are_tokenised_with_and_without_a_leading_space(processor: InputProcessor, smollm2: str) -> None:
    assert params_of(processor, bad_words=["D", "ab"]).bad_words_token_ids == (
        (68,), (32, 68), (97, 98), (32, 97, 98),
    )  # fmt: skip
    assert params_of(processor, bad_words=["<eos>"]).bad_words_token_ids[0] == tuple(b"<eos>")
    real = make_processor(smollm2)
    tokenizer = load_tokenizer(resolve_model(smollm2))
    words = real.prepare("r", "x", SamplingParams(bad_words=["Paris"])).choices[0].sampling.bad_words_token_ids
    assert {tokenizer.decode(ids) for ids in words} == {"Paris", " Paris"}


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_more_logprobs_than_the_engine_allows_are_refused(succ: Path, processor: InputProcessor, name: str) -> None:
    assert getattr(params_of(processor, **{name: 20}).params, name) == 20
    for asked in (21, 320, 10**9, -1):
        with pytest.raises(RequestError, match=f"{name}.*at most 20"):
            params_of(processor, **{name: asked})
    everything = make_processor(str(succ), max_logprobs=-1)
    assert getattr(params_of(everything, **{name: -1}).params, name) == 320
    assert getattr(params_of(everything, **{name: 10**6}).params, name) == 320


def test_the_callers_parameters_are_left_alone(succ: Path) -> None:
    params = SamplingParams(logprobs=-1, seed=-1)
    make_processor(str(succ), max_logprobs=-1).prepare("r", "A", params)
    assert params == SamplingParams(logprobs=-1)


def test_seeds_are_the_given_ones_or_follow_from_the_engines_seed_and_the_ordinal(succ: Path) -> None:
    def seeds(engine_seed: int, given: int | None = None) -> list[int]:
        processor = make_processor(str(succ), seed=engine_seed)
        return [processor.prepare("r", "A", SamplingParams(seed=given)).choices[0].sampling.seed for _ in range(3)]

    assert seeds(0) == seeds(0) != seeds(1)
    assert len(set(seeds(0))) == 3
    assert seeds(0, 0) == [0, 0, 0]
    assert seeds(0, 2**63 - 1) == [2**63 - 1] * 3
    assert all(0 <= seed < 2**63 for seed in seeds(5))
    seeds = OperatingSystemSeeds()
    assert seeds(0) != seeds(0)


def test_n_choices_share_prompt_and_seed_and_differ_in_index_and_name(processor: InputProcessor) -> None:
    requests = processor.prepare("mine", "AB", SamplingParams(n=4, seed=7, prompt_logprobs=2), priority=3).choices
    assert [request.sampling.choice_index for request in requests] == [0, 1, 2, 3]
    assert {request.sampling.seed for request in requests} == {7}
    assert {request.priority for request in requests} == {3}
    names = [re.fullmatch(r"(\d)_mine-[0-9a-f]{8}", request.request_id) for request in requests]
    assert [name[1] for name in names if name] == ["0", "1", "2", "3"]
    assert [request.sampling.params.prompt_logprobs for request in requests] == [2, None, None, None]


def test_an_id_may_be_used_twice(processor: InputProcessor) -> None:
    ids = {processor.prepare("same", "A", SamplingParams()).choices[0].request_id for _ in range(10)}
    assert len(ids) == 10
    assert all(re.fullmatch(r"same-[0-9a-f]{8}", request_id) for request_id in ids)


def test_salt_priority_and_arrival_are_carried(processor: InputProcessor) -> None:
    prompt: Any = {"prompt": "A", "cache_salt": "s", "priority": -2}
    (request,) = processor.prepare("r", prompt, SamplingParams(), priority=5, arrival_time=12.5).choices
    assert (request.cache_salt, request.priority, request.arrival_time) == ("s", -2, 12.5)
    assert processor.prepare("r", "A", SamplingParams(), priority=5).choices[0].priority == 5


def test_a_priority_under_fcfs_is_an_error_that_names_the_policy(succ: Path) -> None:
    processor = make_processor(str(succ), policy="fcfs")
    assert processor.prepare("r", "A", SamplingParams(), priority=0).choices[0].priority == 0
    with pytest.raises(RequestError, match="priority 3 means nothing under the fcfs policy") as error:
        processor.prepare("r", {"prompt": "A", "priority": 3}, SamplingParams())
    assert error.value.param == "priority"
