from __future__ import annotations

from octavo.control.request import Request
from octavo.control.scheduler.step_builder import StepBuilder
from octavo.control.scheduler.token_limits import (
    LongPrefill,
    WholePrefill,
    request_length,
    step_budget,
    token_limits,
)
from tests.fakes import make_message


def step_with(token_budget: int = 100, num_eligible: int = 2) -> StepBuilder:
    return StepBuilder(1, token_budget=token_budget, num_eligible=num_eligible)


def request_of(num_prompt: int, max_total_tokens: int = 1_000) -> Request:
    request = Request(make_message("r", num_prompt))
    request.max_total_tokens = max_total_tokens
    return request


def test_the_last_token_is_never_computed():
    request = request_of(10, max_total_tokens=12)
    assert request_length(10, request, 0, step_with()) == 10
    assert request_length(4, request, 10, step_with()) == 1
    assert request_length(1, request, 11, step_with()) == 0


def test_the_budget_is_what_is_left_of_the_step():
    assert step_budget(10, request_of(10), 0, step_with(token_budget=7)) == 7
    assert step_budget(10, request_of(10), 0, step_with(token_budget=70)) == 10


def test_a_long_prefill_is_cut_while_others_could_run():
    limit = LongPrefill(16)
    assert limit(40, request_of(40), 0, step_with(num_eligible=2)) == 16
    assert limit(40, request_of(40), 0, step_with(num_eligible=1)) == 40
    assert limit(9, request_of(40), 0, step_with(num_eligible=2)) == 9


def test_a_whole_prefill_gets_all_or_nothing():
    limit = WholePrefill(50)
    assert limit(30, request_of(40), 10, step_with()) == 30
    assert limit(29, request_of(40), 10, step_with()) == 0
    assert limit(50, request_of(60), 0, step_with()) == 50, "outgrew every step: chunked"


def test_limits_apply_in_order_and_only_where_asked_for():
    def names(**options: object) -> list[str]:
        limits = token_limits(max_num_batched_tokens=64, **options)  # type: ignore[arg-type]
        return [getattr(limit, "__name__", type(limit).__name__) for limit in limits]

    assert names(enable_chunked_prefill=True, long_prefill_token_threshold=0) == ["request_length", "step_budget"]
    assert names(enable_chunked_prefill=True, long_prefill_token_threshold=4) == [
        "request_length",
        "LongPrefill",
        "step_budget",
    ]
    assert names(enable_chunked_prefill=False, long_prefill_token_threshold=4) == [
        "request_length",
        "step_budget",
        "WholePrefill",
    ]
