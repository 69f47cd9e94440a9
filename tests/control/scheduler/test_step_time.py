from __future__ import annotations

import math

import pytest

from octavo.control.request import Request
from octavo.control.scheduler.step_builder import StepBuilder, StepLoad
from octavo.control.scheduler.step_time import FIRST_CHUNK, LEAST_CHUNK, StepTimeLimit, StepTimeModel
from tests.fakes import make_message


def load(num_decodes: int = 0, chunk: int = 0, after: int = 0) -> StepLoad:
    made = StepLoad(num_decode_tokens=num_decodes)
    if chunk:
        made.add_chunk(chunk, after)
    return made


def true_seconds(made: StepLoad) -> float:
    decodes = 0.010 + 0.001 * made.num_decode_tokens if made.num_decode_tokens else 0.0
    return decodes + 0.0008 * made.num_prefill_tokens + 4e-7 * made.attended


def trained(*loads: StepLoad) -> StepTimeModel:
    model = StepTimeModel()
    for _ in range(3):
        for each in loads:
            model.observe(each, true_seconds(each))
    return model


VARIED = (load(4), load(8), load(0, 512), load(8, 100, 2_000), load(0, 256, 4_000), load(8, 30, 5_500))


def test_both_kinds_of_work_are_told_apart_and_predicted() -> None:
    model = trained(*VARIED)
    for asked in (load(6), load(16), load(8, 64, 100), load(8, 64, 6_000), load(0, 1_024, 1_000)):
        assert model.seconds(asked) == pytest.approx(true_seconds(asked), rel=0.05)


@pytest.mark.parametrize("after", [0, 1_000, 6_000])
def test_the_longest_chunk_that_fits_takes_just_the_time(after: int) -> None:
    model = trained(*VARIED)
    num_tokens = model.tokens_within(0.1, after)
    assert model.seconds(load(0, num_tokens, after)) <= 0.1 < model.seconds(load(0, num_tokens + 1, after))


def test_a_machine_that_slows_down_is_followed_within_some_steps() -> None:
    model = trained(*VARIED)
    for _ in range(15):
        model.observe(load(8), 3 * true_seconds(load(8)))
        model.observe(load(8, 64, 1_000), 3 * true_seconds(load(8, 64, 1_000)))
    assert model.seconds(load(8, 64, 1_000)) == pytest.approx(3 * true_seconds(load(8, 64, 1_000)), rel=0.2)


def test_one_hiccup_does_not_count_in_full() -> None:
    model = trained(*VARIED)
    before = model.decode_seconds(8)
    model.observe(load(8), 60.0)
    assert model.decode_seconds(8) < 4 * before


def test_one_stream_alone_does_not_make_many_seem_slow() -> None:
    model = trained(load(0, 100), load(1))
    limit = StepTimeLimit(model, 0.150, lambda: 40)  # whose decodes take 50 ms
    assert cut(limit, 6_000, step()) > 64


def test_steps_with_prompts_put_right_what_is_believed_of_decodes() -> None:
    model = trained(load(1), load(2), load(0, 100))
    for num_decodes in (1, 2):  # a noisy moment: each decode seems to take 100 ms
        for _ in range(20):
            model.observe(load(num_decodes), 0.1 * num_decodes)
    limit = StepTimeLimit(model, 0.150, lambda: 8)
    assert cut(limit, 6_000, step()) == LEAST_CHUNK
    for _ in range(10):
        chunk = load(8, cut(limit, 6_000, step()))
        model.observe(chunk, true_seconds(chunk))
    assert cut(limit, 6_000, step()) > 100


def test_what_decodes_did_not_take_does_not_make_prompts_seem_free() -> None:
    def seconds(made: StepLoad) -> float:
        return 0.0115 + 0.00053 * made.num_decode_tokens + 0.00035 * made.num_prefill_tokens

    model = StepTimeModel()
    for alone in [load(1)] * 30 + [load(0, 128)]:
        model.observe(alone, seconds(alone))
    limit = StepTimeLimit(model, 0.150, lambda: 63)
    for _ in range(10):
        short = load(63, cut(limit, 128, step()))
        model.observe(short, seconds(short))
    assert model.decode_seconds(63) + model.seconds(load(0, 128)) == pytest.approx(seconds(load(63, 128)), rel=0.1)
    assert model.seconds(load(0, 128)) == pytest.approx(0.00035 * 128, rel=0.35)


def test_nothing_is_known_at_first_and_never_anything_negative() -> None:
    model = StepTimeModel()
    assert model.seconds(load(3, 50)) == 0.0
    assert model.tokens_within(0.1, 0) == FIRST_CHUNK
    model.observe(load(8), 0.5)
    model.observe(load(8, 100), 0.1)  # less than the decodes alone: prompt tokens seem free
    assert model.tokens_within(0.1, 0) >= FIRST_CHUNK
    assert model.tokens_within(-0.1, 0) == 0
    assert model.seconds(load(1, 10)) >= 0.0


def cut(limit: StepTimeLimit, num_tokens: int, step: StepBuilder, num_computed_tokens: int = 0) -> int:
    request = Request(make_message(prompt=6_000))
    return limit(num_tokens, request, num_computed_tokens, step)


def step() -> StepBuilder:
    return StepBuilder(1, token_budget=2_048, num_eligible=9)


def test_prompt_tokens_beside_decodes_are_cut_to_what_fits() -> None:
    model = trained(*VARIED)
    limit = StepTimeLimit(model, 0.1, lambda: 8)
    given = cut(limit, 2_048, step())
    assert given % 8 == 0
    assert 0.085 < model.seconds(load(8, given)) <= 0.1
    assert limit.num_cuts == 1


def test_without_decodes_and_for_decodes_there_is_no_limit() -> None:
    model = trained(*VARIED)
    assert cut(StepTimeLimit(model, 0.1, lambda: 0), 2_048, step()) == 2_048
    assert cut(StepTimeLimit(model, 1e-9, lambda: 8), 1, step()) == 1
    drafted = Request(make_message(prompt=6))
    drafted.draft_token_ids = [1, 2, 3]
    assert StepTimeLimit(model, 1e-9, lambda: 8)(4, drafted, 5, step()) == 4


def test_the_first_chunk_gets_some_tokens_always_and_later_ones_what_is_left() -> None:
    limit = StepTimeLimit(trained(*VARIED), 0.001, lambda: 500)  # the decodes alone take longer
    one = step()
    assert cut(limit, 300, one) == LEAST_CHUNK
    one.load.add_chunk(LEAST_CHUNK, 0)
    assert cut(limit, 300, one) == 0


def test_two_prompts_share_the_time_of_a_step() -> None:
    model = trained(*VARIED)
    limit, one = StepTimeLimit(model, 0.1, lambda: 8), step()
    first = cut(limit, 50, one)
    one.load.add_chunk(first, 0)
    second = cut(limit, 2_000, one)
    one.load.add_chunk(second, 0)
    one.load.num_decode_tokens = 8
    assert first == 50
    assert 0.085 < model.seconds(one.load) <= 0.1
    assert not math.isinf(one.prefill_seconds or 0.0)


def test_what_a_further_token_takes_is_remembered_where_all_steps_have_as_many() -> None:
    model = StepTimeModel()
    for _ in range(20):
        for num_tokens in (1, 5):
            model.observe(StepLoad(num_decode_tokens=num_tokens), 0.04 + 0.01 * num_tokens)
    for _ in range(500):
        model.observe(StepLoad(num_decode_tokens=5), 0.09)
    assert model.decode_coefficients() == pytest.approx((0.04, 0.01), rel=0.02)
