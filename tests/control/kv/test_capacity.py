from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.control.kv.capacity import largest_that, longest_length_that_fits, max_blocks_per_request
from tests.control.kv.parts import chunked, full, window

MIXES = {
    "full": [full(16)],
    "window": [window(32, 16)],
    "both": [full(16), window(32, 16)],
    "three": [full(8), chunked(40, 16), window(9, 4)],
}


@given(st.integers(0, 200), st.integers(0, 200))
def test_the_search_finds_the_last_number_for_which_it_holds(border, at_most):
    assert largest_that(lambda n: n <= border, at_most) == min(border, at_most)


def test_blocks_of_all_groups_are_added():
    # 100 tokens: 7 full blocks; of the window ceil((31 + 8) / 16) + 1 = 4.
    assert max_blocks_per_request(MIXES["both"], 100, 8) == 11


def test_a_window_never_needs_more_than_full_attention_would():
    assert max_blocks_per_request([window(1000, 16)], 40, 8192) == 3


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("num_blocks", [1, 3, 4, 9, 40, 77])
def test_the_longest_length_fits_and_one_more_token_does_not(mix, num_blocks):
    specs = MIXES[mix]
    longest = longest_length_that_fits(specs, num_blocks, at_most=5000, max_tokens_in_flight=64)
    assert max_blocks_per_request(specs, longest, 64) <= num_blocks
    assert longest == 5000 or max_blocks_per_request(specs, longest + 1, 64) > num_blocks


def test_no_length_fits_no_blocks():
    assert longest_length_that_fits([full()], 0, at_most=5000, max_tokens_in_flight=64) == 0


def test_a_window_alone_fits_any_length_once_its_peak_fits():
    # ceil((31 + 64) / 16) + 1 = 7 blocks.
    assert longest_length_that_fits([window(32)], 7, at_most=5000, max_tokens_in_flight=64) == 5000
    assert longest_length_that_fits([window(32)], 6, at_most=5000, max_tokens_in_flight=64) == 96
