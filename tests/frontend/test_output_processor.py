from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.checkpoint.resolve import resolve_model
from octavo.frontend.load_tokenizer import load_tokenizer
from octavo.frontend.output_processor import OutputProcessor
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.words.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    LogprobsRow,
    ResolvedSampling,
)
from octavo.words.outputs import CompletionOutput, RequestOutput
from octavo.words.sampling_params import RequestOutputKind, SamplingParams
from tests.fakes import FakeClock
from tests.succ import EOS

ALPHABET = list(b"BCDEFGHIJKLMNOPQRSTUVWXYZ")


@pytest.fixture(scope="module")
def tokenizer(succ: Path) -> Tokenizer:
    return load_tokenizer(resolve_model(str(succ)))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def processor(tokenizer: Tokenizer, clock: FakeClock) -> OutputProcessor:
    return OutputProcessor(tokenizer, clock=clock)


def make_requests(prompt: bytes = b"A", *, core_id: str = "r-1", n: int = 1, **params: Any) -> list[EngineCoreRequest]:
    given = SamplingParams(n=n, **{"max_tokens": 100, **params})
    return [
        EngineCoreRequest(
            request_id=f"{index}_{core_id}" if n > 1 else core_id,
            prompt_token_ids=list(prompt),
            sampling=ResolvedSampling(params=given, seed=0, max_tokens=100, num_text_tokens=259, choice_index=index),
            arrival_time=99.0,
        )
        for index in range(n)
    ]


def step(*outputs: EngineCoreOutput) -> EngineCoreOutputs:
    return EngineCoreOutputs(outputs=list(outputs))


def rows(token_ids: list[int], logprob: float = -0.5) -> list[LogprobsRow]:
    return [LogprobsRow(token_ids=[token, token, 7], logprobs=[logprob, logprob, -3.0], rank=1) for token in token_ids]


def tokens(token_ids: bytes | list[int], core_id: str = "r-1", **more: Any) -> EngineCoreOutput:
    return EngineCoreOutput(request_id=core_id, new_token_ids=list(token_ids), **more)


def only(outputs: list[RequestOutput]) -> CompletionOutput:
    ((choice,),) = (output.outputs for output in outputs)
    return choice


def test_cumulative_outputs_grow(processor: OutputProcessor) -> None:
    processor.add_request("mine", "A", make_requests())
    first = processor.process_outputs(step(tokens(b"B"))).request_outputs
    second = processor.process_outputs(step(tokens(b"CD", finish_reason=FinishReason.LENGTH))).request_outputs
    assert (only(first).text, only(first).token_ids, first[0].finished) == ("B", [66], False)
    assert (only(second).text, only(second).token_ids, second[0].finished) == ("BCD", [66, 67, 68], True)
    assert (second[0].request_id, second[0].prompt, second[0].prompt_token_ids) == ("mine", "A", [65])
    assert (only(second).finish_reason, only(second).stop_reason) == ("length", None)
    assert not processor.has_unfinished_requests()


def test_delta_outputs_hold_what_is_new(processor: OutputProcessor) -> None:
    processor.add_request("mine", "A", make_requests(output_kind=RequestOutputKind.DELTA, logprobs=1))
    seen = []
    for part in (b"B", b"CD", b"E"):
        output = tokens(part, new_logprobs=rows(list(part)))
        seen.append(only(processor.process_outputs(step(output)).request_outputs))
    assert [choice.text for choice in seen] == ["B", "CD", "E"]
    assert [choice.token_ids for choice in seen] == [[66], [67, 68], [69]]
    assert [[list(entry) for entry in choice.logprobs or []] for choice in seen] == [
        [[66, 7]],
        [[67, 7], [68, 7]],
        [[69, 7]],
    ]
    assert [choice.cumulative_logprob for choice in seen] == [-0.5, -1.5, -2.0]


def test_final_only_brings_one_output_with_all_choices_in_order(processor: OutputProcessor) -> None:
    requests = make_requests(n=3, output_kind=RequestOutputKind.FINAL_ONLY, temperature=1.0)
    processor.add_request("mine", "A", requests)
    end = {"finish_reason": FinishReason.LENGTH}
    assert processor.process_outputs(step(*(tokens(b"B", f"{i}_r-1") for i in range(3)))).request_outputs == []
    assert (
        processor.process_outputs(step(tokens(b"X", "2_r-1", **end), tokens(b"Y", "0_r-1", **end))).request_outputs
        == []
    )
    (output,) = processor.process_outputs(step(tokens(b"Z", "1_r-1", **end))).request_outputs
    assert [(choice.index, choice.text) for choice in output.outputs] == [(0, "BY"), (1, "BZ"), (2, "BX")]
    assert output.finished


def test_a_stop_string_ends_a_choice_and_tells_the_core(processor: OutputProcessor) -> None:
    processor.add_request("mine", "A", make_requests(stop=["GH", "CD", "DE"], logprobs=1))
    processed = processor.process_outputs(step(tokens(ALPHABET, new_logprobs=rows(ALPHABET))))
    choice = only(processed.request_outputs)
    assert (choice.text, choice.finish_reason, choice.stop_reason) == ("B", "stop", "CD")
    assert choice.token_ids == [66, 67, 68]
    assert len(choice.logprobs or []) == 3
    assert choice.cumulative_logprob == -1.5
    assert processed.to_abort == ["r-1"]
    assert processed.request_outputs[0].finished
    assert processor.process_outputs(step(tokens(b"Z"))).request_outputs == [], "the core did not know yet"


def test_a_stop_string_in_the_last_output_needs_no_abort(processor: OutputProcessor) -> None:
    processor.add_request("mine", "A", make_requests(stop="EF", include_stop_str_in_output=True))
    processed = processor.process_outputs(step(tokens(b"BCDEFG", finish_reason=FinishReason.LENGTH)))
    choice = only(processed.request_outputs)
    assert (choice.text, choice.finish_reason, choice.stop_reason) == ("BCDEF", "stop", "EF")
    assert processed.to_abort == []


def test_an_ending_token_stays_in_the_ids_and_out_of_the_text(processor: OutputProcessor) -> None:
    processor.add_request("mine", "w", make_requests(b"w"))
    ended = tokens([*b"xyz", EOS], finish_reason=FinishReason.STOP)
    choice = only(processor.process_outputs(step(ended)).request_outputs)
    assert (choice.text, choice.token_ids, choice.stop_reason) == ("xyz", [*b"xyz", EOS], None)
    processor.add_request("mine", "A", make_requests(stop_token_ids=[69]))
    ended = tokens(b"BCDE", finish_reason=FinishReason.STOP, stop_reason=69)
    choice = only(processor.process_outputs(step(ended)).request_outputs)
    assert (choice.text, choice.finish_reason, choice.stop_reason) == ("BCD", "stop", 69)


def test_without_detokenize_there_are_ids_and_no_text(processor: OutputProcessor) -> None:
    processor.add_request("mine", None, make_requests(detokenize=False, logprobs=1))
    choice = only(processor.process_outputs(step(tokens(b"B", new_logprobs=rows([66])))).request_outputs)
    assert (choice.text, choice.token_ids) == ("", [66])
    assert [entry.decoded_token for entry in (choice.logprobs or [{}])[0].values()] == [None, None]


def test_errors_are_said_and_harm_no_other(processor: OutputProcessor) -> None:
    processor.add_request("bad", "A", make_requests(core_id="bad-1"))
    processor.add_request("good", "A", make_requests(core_id="good-1"))
    failed = tokens(b"", "bad-1", finish_reason=FinishReason.ERROR, error="logits are NaN")
    bad, good = processor.process_outputs(step(failed, tokens(b"B", "good-1"))).request_outputs
    assert (bad.finished, bad.outputs[0].finish_reason, bad.outputs[0].error) == (True, "error", "logits are NaN")
    assert (good.finished, good.outputs[0].text) == (False, "B")


def test_an_abort_ends_all_that_share_the_id_and_silences_them(processor: OutputProcessor) -> None:
    processor.add_request("same", "A", make_requests(core_id="same-1", n=2, temperature=1.0))
    processor.add_request("same", "A", make_requests(core_id="same-2"))
    processor.add_request("other", "A", make_requests(core_id="other-1"))
    assert sorted(processor.abort_requests(["same", "unknown"])) == ["0_same-1", "1_same-1", "same-2"]
    assert processor.num_unfinished_choices == 1
    outputs = processor.process_outputs(step(tokens(b"B", "same-2"), tokens(b"B", "other-1"))).request_outputs
    assert [output.request_id for output in outputs] == ["other"]


def test_prompt_logprobs_begin_with_none_and_come_once_in_deltas(processor: OutputProcessor) -> None:
    for kind, times in ((RequestOutputKind.DELTA, [True, False]), (RequestOutputKind.CUMULATIVE, [True, True])):
        processor.add_request("mine", "ABC", make_requests(b"ABC", prompt_logprobs=1, output_kind=kind))
        first = tokens(b"D", prompt_logprobs=rows(list(b"BC")))
        last = tokens(b"E", finish_reason=FinishReason.LENGTH)
        seen = [processor.process_outputs(step(output)).request_outputs[0].prompt_logprobs for output in (first, last)]
        assert [value is not None for value in seen] == times
        assert seen[0] is not None and seen[0][0] is None
        assert [next(iter(entry.values())).decoded_token for entry in seen[0][1:] if entry] == ["B", "C"]


def test_a_prompt_of_one_token_has_one_empty_prompt_logprob(processor: OutputProcessor) -> None:
    processor.add_request("mine", "A", make_requests(prompt_logprobs=1))
    assert processor.process_outputs(step(tokens(b"B"))).request_outputs[0].prompt_logprobs == [None]


def test_metrics_tell_times_preemptions_and_cached_tokens(processor: OutputProcessor, clock: FakeClock) -> None:
    processor.add_request("mine", "A", make_requests(n=2, temperature=1.0, output_kind=RequestOutputKind.FINAL_ONLY))
    processor.process_outputs(step(tokens(b"", "0_r-1", first_scheduled_time=99.5, num_cached_tokens=16)))
    clock.now = 101.0
    processor.process_outputs(step(tokens(b"B", "0_r-1", first_scheduled_time=99.5, num_preemptions=2)))
    clock.now = 102.0
    end = {"finish_reason": FinishReason.LENGTH, "num_preemptions": 1, "num_cached_tokens": 32}
    last = step(
        tokens(b"C", "1_r-1", **end), tokens(b"C", "0_r-1", **{**end, "num_preemptions": 2, "num_cached_tokens": 16})
    )
    (output,) = processor.process_outputs(last).request_outputs
    metrics = output.metrics
    assert metrics is not None
    assert (metrics.arrival_time, metrics.first_scheduled_time) == (99.0, 99.5)
    assert (metrics.first_token_time, metrics.finished_time, metrics.num_preemptions) == (101.0, 102.0, 3)
    assert output.num_cached_tokens == 16


def test_logprobs_are_sorted_and_hold_the_chosen_token(processor: OutputProcessor) -> None:
    outside = LogprobsRow(token_ids=[90, 66, 67], logprobs=[-9.0, -0.1, -2.0], rank=40)
    inside = LogprobsRow(token_ids=[67, 66, 67], logprobs=[-2.0, -0.1, -2.0], rank=2)
    processor.add_request("mine", "A", make_requests(logprobs=2))
    choice = only(processor.process_outputs(step(tokens([90, 67], new_logprobs=[outside, inside]))).request_outputs)
    first, second = choice.logprobs or [{}, {}]
    assert [(i, entry.logprob, entry.rank) for i, entry in first.items()] == [
        (66, -0.1, 1),
        (67, -2.0, 2),
        (90, -9.0, 40),
    ]
    assert [(i, entry.rank) for i, entry in second.items()] == [(66, 1), (67, 2)]
    assert choice.cumulative_logprob == -11.0


def test_tokens_that_are_parts_of_characters_are_repaired_in_logprobs(processor: OutputProcessor) -> None:
    llama = list("x🦙y".encode())
    candidates = [LogprobsRow(token_ids=[token, 65, 0xA6], logprobs=[-0.5, -1.0, -2.0], rank=9) for token in llama]
    processor.add_request("mine", "A", make_requests(logprobs=2))
    choice = only(processor.process_outputs(step(tokens(llama, new_logprobs=candidates))).request_outputs)
    texts = [entry[token].decoded_token for entry, token in zip(choice.logprobs or [], llama, strict=True)]
    assert texts == ["x", "", "", "", "🦙", "y"]
    assert [entry[65].decoded_token for entry in choice.logprobs or []] == ["A"] * 6


@given(
    token_ids=st.lists(st.sampled_from([*"abé🦙".encode(), EOS]), min_size=1, max_size=25),
    stop=st.lists(st.text("abé", min_size=1, max_size=3), max_size=2),
    include=st.booleans(),
    data=st.data(),
)
def test_deltas_add_up_to_the_cumulative_and_the_final_output(
    tokenizer: Tokenizer, token_ids: list[int], stop: list[str], include: bool, data: st.DataObject
) -> None:
    ends = data.draw(st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]))
    parts, rest = [], token_ids
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        parts.append(rest[:size])
        rest = rest[size:]
    steps = [
        tokens(part, new_logprobs=rows(part), finish_reason=ends if place == len(parts) - 1 else None)
        for place, part in enumerate(parts)
    ]

    def run(kind: RequestOutputKind, outputs: list[EngineCoreOutput]) -> list[CompletionOutput]:
        processor = OutputProcessor(tokenizer)
        params: dict[str, Any] = {
            "stop": stop,
            "include_stop_str_in_output": include,
            "logprobs": 1,
            "output_kind": kind,
        }
        processor.add_request("mine", "A", make_requests(**params))
        seen = [output for each in outputs for output in processor.process_outputs(step(each)).request_outputs]
        assert seen[-1].finished
        return [output.outputs[0] for output in seen]

    deltas = run(RequestOutputKind.DELTA, steps)
    cumulative = run(RequestOutputKind.CUMULATIVE, steps)[-1]
    (final,) = run(RequestOutputKind.FINAL_ONLY, steps)
    (whole,) = run(RequestOutputKind.FINAL_ONLY, [tokens(token_ids, new_logprobs=rows(token_ids), finish_reason=ends)])
    joined = CompletionOutput(
        index=0,
        text="".join(delta.text for delta in deltas),
        token_ids=[token for delta in deltas for token in delta.token_ids],
        cumulative_logprob=deltas[-1].cumulative_logprob,
        logprobs=[entry for delta in deltas for entry in delta.logprobs or []],
        finish_reason=deltas[-1].finish_reason,
        stop_reason=deltas[-1].stop_reason,
    )
    assert joined == cumulative == final == whole
