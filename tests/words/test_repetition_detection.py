from __future__ import annotations

import pytest

from octavo.words.errors import RequestError
from octavo.words.repetition_detection import RepetitionDetectionParams


@pytest.mark.parametrize(
    ("token_ids", "num_output", "is_met"),
    [
        ([1, 2, 3, 1, 2, 3, 1, 2, 3], 9, True),
        ([1, 2, 3, 1, 2, 3, 1, 2, 3], 8, False),  # the prompt does not count
        ([9, 1, 2, 3, 1, 2, 3], 7, False),  # twice only
        ([5, 5, 5], 3, False),  # shorter patterns than are looked for
        ([5, 5, 5, 5, 5, 5], 6, True),
        ([1, 2, 3, 1, 2, 3, 1, 2, 3, 4], 10, False),
        ([1, 2, 1, 4, 1, 2], 6, False),
        ([1, 2, 3, 4] * 3, 12, True),
        ([1, 2, 3, 4, 5] * 3, 15, False),  # a longer pattern
    ],
)
def test_three_times_the_same_two_to_four_tokens_at_the_end(
    token_ids: list[int], num_output: int, is_met: bool
) -> None:
    params = RepetitionDetectionParams(min_pattern_size=2, max_pattern_size=4, min_count=3)
    assert params.is_met(token_ids, num_output) is is_met


@pytest.mark.parametrize(
    "wrong",
    [{"max_pattern_size": 0}, {"min_count": 1}, {"min_pattern_size": 9}, {"min_count": True}, {"min_count": "2"}],
)
def test_what_is_out_of_range_is_named(wrong: dict[str, object]) -> None:
    with pytest.raises(RequestError, match=next(iter(wrong)) if "min_pattern_size" not in wrong else "max_pattern"):
        RepetitionDetectionParams(**{"max_pattern_size": 4, **wrong})  # type: ignore[arg-type]
