from __future__ import annotations

import msgspec
import pytest

from octavo.words.errors import RequestError
from octavo.words.messages import EngineCoreRequest, ResolvedSampling
from octavo.words.sampling_params import MAX_BAD_WORDS, MAX_SEED, SamplingParams

BAD_VALUES = [
    ("n", 0),
    ("n", -1),
    ("n", 10**9),
    ("n", True),
    ("n", "2"),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -2.5),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", float("nan")),
    ("repetition_penalty", 10**400),
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", float("inf")),
    ("temperature", "hot"),
    ("top_p", 0.0),
    ("top_p", 1.1),
    ("top_k", -2),
    ("top_k", 1.5),
    ("top_k", 2**31),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("seed", -2),
    ("seed", 2**64),
    ("seed", 1.5),
    ("seed", "x"),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 1.5),
    ("max_tokens", 2**63),
    ("min_tokens", -1),
    ("min_tokens", 2**31),
    ("logprobs", -2),
    ("prompt_logprobs", -2),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop", [7]),
    ("stop", 7),
    ("stop", {"a"}),
    ("stop", "\ud800"),
    ("stop_token_ids", 7),
    ("stop_token_ids", ["a"]),
    ("stop_token_ids", [True]),
    ("allowed_token_ids", []),
    ("allowed_token_ids", [1.0]),
    ("bad_words", [""]),
    ("bad_words", "ab"),
    ("bad_words", ["\ud800"]),
    ("bad_words", ["a"] * (MAX_BAD_WORDS + 1)),
    ("logit_bias", {1: 101}),
    ("logit_bias", {1: "x"}),
    ("logit_bias", {"a": 1}),
    ("logit_bias", [1]),
    ("ignore_eos", "yes"),
    ("detokenize", None),
    ("skip_special_tokens", 1),
    ("include_stop_str_in_output", "x"),
    ("output_kind", 7),
]


@pytest.mark.parametrize(("field", "value"), BAD_VALUES)
def test_a_wrong_value_names_its_field(field: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field
    assert field in str(caught.value)
    assert len(str(caught.value)) < 300


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=2)  # type: ignore[call-arg]


def test_temperature_zero_is_greedy_and_neutralises_the_distribution_fields() -> None:
    params = SamplingParams(temperature=0.0, top_p=0.5, top_k=7, min_p=0.1)
    assert params.is_greedy
    assert (params.top_p, params.top_k, params.min_p) == (1.0, 0, 0.0)


def test_a_tiny_temperature_is_lifted() -> None:
    assert SamplingParams(temperature=0.001).temperature == 0.01
    assert SamplingParams(temperature=1e-6).is_greedy


def test_greedy_refuses_several_choices() -> None:
    with pytest.raises(RequestError, match="n must be 1 when temperature is 0"):
        SamplingParams(temperature=0, n=2)


def test_min_tokens_must_not_exceed_max_tokens() -> None:
    with pytest.raises(RequestError, match=r"min_tokens \(9\).*max_tokens \(8\)"):
        SamplingParams(min_tokens=9, max_tokens=8)
    assert SamplingParams(min_tokens=9, max_tokens=None).min_tokens == 9


def test_stop_strings_need_text() -> None:
    with pytest.raises(RequestError, match="detokenize"):
        SamplingParams(stop="x", detokenize=False)


def test_one_stop_string_becomes_a_list() -> None:
    assert SamplingParams(stop="x").stop_strings == ["x"]
    assert SamplingParams(stop=("x", "y")).stop_strings == ["x", "y"]  # type: ignore[arg-type]
    assert SamplingParams().stop_strings == []


def test_spellings_of_none_and_all() -> None:
    assert SamplingParams(seed=-1).seed is None
    assert SamplingParams(top_k=-1).top_k == 0
    assert SamplingParams(seed=MAX_SEED).seed == MAX_SEED


def test_a_clone_is_checked_and_independent() -> None:
    stop = ["a"]
    params = SamplingParams(stop=stop, n=2)
    assert params.clone(n=1).n == 1
    stop.append("b")
    params.clone().stop_strings.append("c")
    assert params.stop_strings == ["a"]
    with pytest.raises(RequestError):
        params.clone(n=0)
    assert params.n == 2


def test_every_field_survives_the_wire() -> None:
    params = SamplingParams(
        n=2,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.2,
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        seed=7,
        stop=["a", "b"],
        stop_token_ids=[5],
        ignore_eos=True,
        max_tokens=9,
        min_tokens=3,
        logprobs=2,
        prompt_logprobs=1,
        logit_bias={3: -100.0},
        allowed_token_ids=[1, 2],
        bad_words=["x"],
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        include_stop_str_in_output=True,
    )
    request = EngineCoreRequest(
        request_id="r",
        prompt_token_ids=[1, 2],
        sampling=ResolvedSampling(params=params, seed=7, max_tokens=9, num_text_tokens=100, eos_token_ids=(2, 3)),
        arrival_time=1.5,
        output_token_ids=[4],
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=EngineCoreRequest) == request
