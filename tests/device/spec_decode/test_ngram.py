from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo.device.spec_decode.drafter import NoDrafter, SaidTokens
from octavo.device.spec_decode.ngram import NgramDrafter, NgramIndex
from octavo.device.spec_decode.verify import num_right
from octavo.words.messages import NewRequestData, ResolvedSampling
from octavo.words.sampling_params import SamplingParams


def request_of(**given: Any) -> NewRequestData:
    sampling = ResolvedSampling(params=SamplingParams(), seed=0, max_tokens=9, num_text_tokens=9)
    common = {"request_id": "r", "output_token_ids": [], "block_ids": (), "num_computed_tokens": 0}
    return NewRequestData(sampling=sampling, **{**common, **given})


def said(**tokens: list[int]) -> SaidTokens:
    """A step that ends with the last of these tokens of each request; an empty one is still in its prompt."""
    num_tokens = np.array([len(each) for each in tokens.values()])
    table = np.zeros((len(tokens), 64), dtype=np.int32)
    for row, each in enumerate(tokens.values()):
        table[-1 - row, : len(each)] = each
    return SaidTokens(
        request_ids=list(tokens),
        slots=np.arange(len(tokens))[::-1],
        token_ids=table,
        num_tokens=num_tokens,
        num_computed=num_tokens - 2,
        num_kept=np.ones(len(tokens), dtype=np.int64),
        is_sampled=num_tokens > 0,
        hidden=torch.zeros(len(tokens), 1),
        first_rows=np.arange(len(tokens)),
    )


def drafter_of(step: SaidTokens, min_n: int = 1, max_n: int = 3, num_prompt: int = 1) -> NgramDrafter:
    """One that knows the requests of a step, which began with a prompt of so many tokens."""
    drafter = NgramDrafter(min_n, max_n)
    for slot in step.slots.tolist():
        drafter.add(slot, request_of(prompt_token_ids=[0] * num_prompt))
    return drafter


def guess(tokens: list[int], most: int = 3, min_n: int = 1, max_n: int = 3) -> list[int]:
    step = said(r=tokens)
    return drafter_of(step, min_n, max_n).propose(step, {"r": most}).get("r", [])


def test_what_followed_the_longest_suffix_is_guessed() -> None:
    assert guess([9, 5, 6, 1, 2, 5, 6, 3, 4, 2, 5, 6]) == [3, 4, 2]


def test_of_equally_long_matches_the_earliest_counts() -> None:
    assert guess([5, 1, 5, 2, 5]) == [1, 5, 2]


def test_a_suffix_shorter_than_the_least_or_longer_than_the_most_is_not_looked_up() -> None:
    assert guess([5, 1, 2, 5], min_n=2) == []
    assert guess([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3], max_n=2) == [7, 9, 2]
    assert guess([9, 2, 3, 8, 1, 2, 3, 7, 1, 2, 3], max_n=2) == [8, 1, 2]


def test_a_match_may_overlap_the_suffix_and_there_may_be_fewer_tokens_than_asked() -> None:
    assert guess([7, 7]) == [7]
    assert guess([1, 7, 7, 7, 7], max_n=2) == [7, 7]


def test_tokens_in_whose_place_embeddings_were_given_are_not_looked_at() -> None:
    """Their ids are zeros, whatever the prompt says: a request that says 0 would find it there."""
    step, drafter = said(given=[0, 0, 0, 4, 0, 6, 4], known=[0, 0, 0, 4, 0, 6, 4]), NgramDrafter(1, 3)
    embeds = {"given": b"embeddings", "known": b""}
    for request_id, slot in zip(step.request_ids, step.slots.tolist(), strict=True):
        drafter.add(slot, request_of(prompt_token_ids=[0, 0, 0], prompt_embeds=embeds[request_id]))
    wanted = dict.fromkeys(step.request_ids, 2)
    assert drafter.propose(step, wanted) == {"given": [0, 6], "known": [0, 6]}
    step = said(given=[0, 0, 0, 4, 6, 0], known=[0, 0, 0, 4, 6, 0])
    for request_id, slot in zip(step.request_ids, step.slots.tolist(), strict=True):
        drafter.remove(slot)
        drafter.add(slot, request_of(prompt_token_ids=[0, 0, 0], prompt_embeds=embeds[request_id]))
    assert drafter.propose(step, wanted) == {"known": [0, 0]}
    drafter.remove(int(step.slots[0]))
    drafter.add(int(step.slots[0]), request_of(prompt_token_ids=[0, 0, 0]))
    assert drafter.propose(step, wanted) == {"given": [0, 0], "known": [0, 0]}


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3]])
def test_without_a_match_nothing_is_guessed(tokens: list[int]) -> None:
    assert guess(tokens) == []


def test_no_more_are_guessed_than_asked() -> None:
    assert guess([1, 2, 3, 4, 1], most=2) == [2, 3]


def test_each_request_is_looked_up_in_its_own_tokens() -> None:
    step, most = said(c=[6, 6], b=[1, 2, 3], a=[4, 8, 4], prompt=[], left_out=[5, 5]), dict.fromkeys("abc", 2)
    assert drafter_of(step).propose(step, most | {"prompt": 2}) == {"c": [6], "a": [8, 4]}
    assert NoDrafter().propose(step, most) == {}


TOKENS = st.lists(st.integers(0, 2), max_size=24)


def place_of_longest_suffix(tokens: list[int], min_n: int, max_n: int) -> int:
    for n in range(min(max_n, len(tokens)), min_n - 1, -1):
        for end in range(n, len(tokens)):
            if tokens[end - n : end] == tokens[-n:]:
                return end
    return 0


@given(tokens=TOKENS, first=st.integers(0, 24), min_n=st.integers(1, 3), more=st.integers(0, 2))
def test_an_index_knows_the_earliest_place_of_every_suffix(
    tokens: list[int], first: int, min_n: int, more: int
) -> None:
    index, ids = NgramIndex(min_n, min_n + more), np.array(tokens, dtype=np.int32)
    index.extend(ids[:first])
    index.extend(ids)
    ends = range(1, len(tokens) + 1)
    assert index.follows == [place_of_longest_suffix(tokens[:end], min_n, min_n + more) for end in ends]


# ---- in hindsight ----------------------------------------------------------------------------------------------------


def trials(tokens: list[int], most: int = 3, num_prompt: int = 1) -> list[tuple[int, int]]:
    step = said(r=tokens)
    return drafter_of(step, num_prompt=num_prompt).look_back(step, {"r": most})["r"]


def test_what_drafts_would_have_brought_is_told_step_by_step() -> None:
    # After 5: 6 7 5 are guessed, of which two are right; after 9 and 0 nothing is; after 5 again 6 7 5.
    assert trials([5, 6, 7, 5, 6, 7, 9, 0, 5, 6, 8], num_prompt=3) == [(3, 2), (0, 0), (0, 0), (3, 1)]
    assert trials([1, 2, 3, 4]) == [(0, 0)] * 2


def test_a_guess_that_may_go_on_is_judged_when_that_is_known() -> None:
    step = said(r=[5, 6, 7, 5, 6])
    drafter = drafter_of(step, num_prompt=3)
    assert drafter.look_back(step, {"r": 3}) == {"r": []}
    assert drafter.look_back(said(r=[5, 6, 7, 5, 6, 7, 8]), {"r": 3}) == {"r": [(3, 2)]}


@given(tokens=TOKENS, cuts=st.lists(st.integers(1, 24)), most=st.integers(1, 4))
def test_trials_are_the_same_however_tokens_come(tokens: list[int], cuts: list[int], most: int) -> None:
    tokens = [0, *tokens]
    drafter, found = drafter_of(said(r=tokens)), []
    for end in (*sorted(min(cut, len(tokens)) for cut in cuts), len(tokens)):
        found += drafter.look_back(said(r=tokens[:end]), {"r": most})["r"]
    assert found == trials(tokens, most)


def test_what_was_guessed_to_be_verified_is_no_trial() -> None:
    step = said(r=[5, 6, 7, 5])
    drafter = drafter_of(step, num_prompt=3)
    assert drafter.propose(step, {"r": 3}) == {"r": [6, 7, 5]}
    assert drafter.look_back(said(r=[5, 6, 7, 5, 6]), {"r": 3}) == {"r": []}


def test_who_is_not_asked_about_is_not_judged() -> None:
    step = said(a=[1, 1, 1], b=[2, 2, 2])
    assert drafter_of(step).look_back(step, {"b": 1}) == {"b": [(1, 1)]}
    assert NoDrafter().look_back(step, {"b": 2}) == {}


def test_drafts_count_up_to_the_first_wrong_one() -> None:
    assert num_right([1, 2, 3], [1, 2]) == 2
    assert num_right([1, 2, 3], [1, 9]) == 1
    assert num_right([5, 2, 3], [1, 2]) == 0
    assert num_right([5], []) == 0
