from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.checkpoint.resolve import resolve_model
from octavo.frontend.load_tokenizer import load_tokenizer
from octavo.tokenizer.detokenizer import IncrementalDetokenizer
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.words.sampling_params import SamplingParams
from tests.succ import EOS, EOT


@pytest.fixture(scope="module")
def tokenizer(succ: Path) -> Tokenizer:
    return load_tokenizer(resolve_model(str(succ)))


def stream(detokenizer: IncrementalDetokenizer, token_ids: list[int], *, ended: bool = False) -> list[str]:
    """Deltas of one token at a time, the last one with the finish."""
    deltas = []
    for place, token_id in enumerate(token_ids):
        last = place == len(token_ids) - 1
        hit = detokenizer.append([token_id], ended and last)
        deltas.append(detokenizer.take_delta(finished=last or hit is not None))
        if hit is not None:
            break
    return deltas


def test_a_character_is_shown_when_its_last_byte_is_there(tokenizer: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer, [65], SamplingParams())
    assert stream(detokenizer, list("a🦙é!".encode())) == ["a", "", "", "", "🦙", "", "é", "!"]


def test_a_character_that_the_prompt_began_is_finished_by_the_answer(tokenizer: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer, [65, 0xF0, 0x9F], SamplingParams())
    assert stream(detokenizer, [0xA6, 0x99, 0x42]) == ["", "🦙", "B"]


def test_an_unfinished_character_at_the_end_comes_to_one_replacement_character(tokenizer: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer, [65], SamplingParams())
    assert stream(detokenizer, [0x42, 0xF0, 0x9F]) == ["B", "", "\ufffd"]
    assert detokenizer.text == tokenizer.decode([0x42, 0xF0, 0x9F])


@given(
    token_ids=st.lists(
        st.one_of(st.integers(0, 300), st.sampled_from(list("é🦙你".encode()))), min_size=1, max_size=40
    ),
    skips=st.booleans(),
)
def test_deltas_add_up_to_the_decoded_whole(tokenizer: Tokenizer, token_ids: list[int], skips: bool) -> None:
    params = SamplingParams(skip_special_tokens=skips)
    deltas = stream(IncrementalDetokenizer(tokenizer, [65], params), token_ids)
    assert "".join(deltas) == tokenizer.decode(token_ids, skip_special_tokens=skips)


@given(text=st.text(max_size=30))
def test_no_delta_of_valid_text_holds_a_replacement_character(tokenizer: Tokenizer, text: str) -> None:
    deltas = stream(IncrementalDetokenizer(tokenizer, [65], SamplingParams()), list(text.encode()))
    assert "".join(deltas) == text
    assert "\ufffd" not in "".join(deltas) or "\ufffd" in text


@pytest.mark.parametrize("text", [" one two  three\n\n four", "  x", "a\n b"])
def test_spaces_at_token_borders_are_kept(real_model: str, text: str) -> None:
    real = load_tokenizer(resolve_model(real_model))
    ids = real.encode(text, add_special_tokens=False)
    assert "".join(stream(IncrementalDetokenizer(real, [1], SamplingParams()), ids)) == text


def test_an_ending_token_is_never_shown_but_one_before_it_is_if_asked(tokenizer: Tokenizer) -> None:
    ended = [*b"xyz", EOS]
    for skips in (True, False):
        shown = IncrementalDetokenizer(tokenizer, [119], SamplingParams(skip_special_tokens=skips))
        assert "".join(stream(shown, ended, ended=True)) == "xyz"
    going_on = IncrementalDetokenizer(tokenizer, [119], SamplingParams(skip_special_tokens=False))
    assert "".join(stream(going_on, [*ended, 65])) == "xyz<eos>A"
    hidden = IncrementalDetokenizer(tokenizer, [119], SamplingParams())
    assert "".join(stream(hidden, [*ended, *b"ABCDEF"])) == "xyzABCDEF"
    stop_id = IncrementalDetokenizer(tokenizer, [65], SamplingParams(stop_token_ids=[69]))
    assert "".join(stream(stop_id, list(b"BCDE"), ended=True)) == "BCD"


ALPHABET = [*b"BCDEFGHIJKLMNOPQRSTUVWXYZ", EOT]


@pytest.mark.parametrize(
    ("stop", "include", "text", "reason", "kept"),
    [
        (["EF"], False, "BCD", "EF", 5),
        (["EF"], True, "BCDEF", "EF", 5),
        (["GH", "CD", "DE"], False, "B", "CD", 3),
        (["E", "CDE"], False, "B", "CDE", 4),
        (["B"], False, "", "B", 1),
        (["BA"], False, "BCDEFGHIJKLMNOPQRSTUVWXYZ", None, 26),
    ],
)
def test_the_stop_string_completed_first_cuts_the_text(
    tokenizer: Tokenizer, stop: list[str], include: bool, text: str, reason: str | None, kept: int
) -> None:
    params = SamplingParams(stop=stop, include_stop_str_in_output=include, max_tokens=30)
    at_once = IncrementalDetokenizer(tokenizer, [65], params)
    assert at_once.append(ALPHABET, True) == reason
    assert at_once.num_kept_tokens == kept
    assert at_once.take_delta(finished=True) == text == at_once.text
    one_by_one = IncrementalDetokenizer(tokenizer, [65], params)
    assert "".join(stream(one_by_one, ALPHABET, ended=True)) == text
    assert one_by_one.num_kept_tokens == kept


def test_text_that_is_asked_for_late_is_the_same(tokenizer: Tokenizer) -> None:
    tokens = [*"a🦙".encode(), EOT, *"é".encode(), 0xC3]
    late = IncrementalDetokenizer(tokenizer, [65], SamplingParams())
    for token_id in tokens:
        late.append([token_id])
    late.append([EOS], True)
    at_once = stream(IncrementalDetokenizer(tokenizer, [65], SamplingParams()), [*tokens, EOS], ended=True)
    assert late.num_kept_tokens == len(tokens) + 1
    assert late.take_delta(finished=True) == "".join(at_once) == late.text == "a🦙é\ufffd"


def test_a_stop_string_may_end_inside_a_token(smollm2: str) -> None:
    real = load_tokenizer(resolve_model(smollm2))
    ids = real.encode("1 STOPPED 2")
    for include, text in ((False, "1 "), (True, "1 STO")):
        params = SamplingParams(stop=["STO"], include_stop_str_in_output=include)
        assert "".join(stream(IncrementalDetokenizer(real, [1], params), ids)) == text


def test_what_may_become_a_stop_string_is_held_back(tokenizer: Tokenizer) -> None:
    params = SamplingParams(stop=["DEX", "Q"])
    assert stream(IncrementalDetokenizer(tokenizer, [65], params), list(b"BCDEF")) == ["", "", "B", "C", "DEF"]


def test_stop_strings_wait_for_min_tokens(tokenizer: Tokenizer) -> None:
    def text(min_tokens: int) -> str:
        params = SamplingParams(stop=["CD"], min_tokens=min_tokens)
        return "".join(stream(IncrementalDetokenizer(tokenizer, [65], params), list(b"BCDECDF")))

    assert [text(min_tokens) for min_tokens in (0, 2, 3, 5, 6)] == ["B", "B", "BCDE", "BCDE", "BCDECDF"]


@given(
    token_ids=st.lists(st.sampled_from(list("abé".encode())), min_size=1, max_size=30),
    stop=st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=3),
    include=st.booleans(),
    min_tokens=st.integers(0, 5),
    data=st.data(),
)
def test_text_and_kept_tokens_do_not_depend_on_how_tokens_arrive(
    tokenizer: Tokenizer, token_ids: list[int], stop: list[str], include: bool, min_tokens: int, data: st.DataObject
) -> None:
    params = SamplingParams(stop=stop, include_stop_str_in_output=include, min_tokens=min_tokens)
    whole = IncrementalDetokenizer(tokenizer, [65], params)
    hit = whole.append(token_ids)
    whole.take_delta(finished=True)
    split, deltas, rest = IncrementalDetokenizer(tokenizer, [65], params), [], token_ids
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        found, rest = split.append(rest[:size]), rest[size:]
        deltas.append(split.take_delta(finished=found is not None or not rest))
        if found is not None:
            break
    assert ("".join(deltas), found, split.num_kept_tokens) == (whole.text, hit, whole.num_kept_tokens)
    assert hit is None or hit not in whole.text[: len(whole.text) - len(hit)] or min_tokens


@pytest.mark.parametrize("spaces_between", [True, False])
def test_special_tokens_side_by_side_are_spelled_as_they_are(tokenizer: Tokenizer, spaces_between: bool) -> None:
    # spaces_between_special_tokens=False forbids the spaces that a decoder might put; the decoders here put none.
    params = SamplingParams(skip_special_tokens=False, spaces_between_special_tokens=spaces_between)
    token_ids = [EOT, EOS, 65, EOT]
    shown = "".join(stream(IncrementalDetokenizer(tokenizer, [65], params), token_ids))
    assert shown == "".join(tokenizer.decode([token_id], skip_special_tokens=False) for token_id in token_ids)
    assert " " not in shown and len(shown) > 3
