from __future__ import annotations

import numpy as np
import pytest

from octavo.device.spec_decode.drafter import NoDrafter
from octavo.device.spec_decode.ngram import NgramDrafter
from octavo.device.spec_decode.verify import num_right


def guess(tokens: list[int], num_tokens: int = 3, min_n: int = 1, max_n: int = 3, max_model_len: int = 99) -> list[int]:
    drafter = NgramDrafter(num_tokens, min_n, max_n, max_model_len)
    return [int(token) for token in drafter.guess(np.array(tokens, dtype=np.int32))]


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


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3]])
def test_without_a_match_nothing_is_guessed(tokens: list[int]) -> None:
    assert guess(tokens) == []


def test_drafts_leave_room_for_the_token_after_them() -> None:
    assert guess([1, 2, 3, 4, 1], max_model_len=8) == [2, 3]
    assert guess([1, 2, 3, 4, 1], max_model_len=6) == []


def test_each_request_is_looked_up_in_its_own_tokens() -> None:
    table = np.array([[4, 8, 4, 0], [1, 2, 3, 0], [6, 6, 0, 0]], dtype=np.int32)
    slots, num_tokens = np.array([2, 1, 0]), np.array([3, 3, 2])
    drafter = NgramDrafter(2, 1, 3, 99)
    assert drafter.propose(["c", "b", "a"], slots, table, num_tokens) == {"c": [6], "a": [8, 4]}
    assert NoDrafter().propose(["c", "b", "a"], slots, table, num_tokens) == {}


def test_drafts_count_up_to_the_first_wrong_one() -> None:
    assert num_right([1, 2, 3], [1, 2]) == 2
    assert num_right([1, 2, 3], [1, 9]) == 1
    assert num_right([5, 2, 3], [1, 2]) == 0
    assert num_right([5], []) == 0
