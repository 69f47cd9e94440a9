from __future__ import annotations

from octavo.control.request import Request
from octavo.control.scheduler.step_builder import StepBuilder
from tests.fakes import make_message


def step_of(token_budget: int = 100) -> StepBuilder:
    return StepBuilder(5, token_budget=token_budget, num_eligible=1)


def test_a_new_request_is_told_in_full_and_counted_at_once():
    request = Request(make_message("r", [1, 2, 3, 4], output_token_ids=[5]))
    request.num_computed_tokens = 2
    step = step_of()
    step.add_admitted(request, 2, ([9, 8],))
    output = step.build(["gone"])
    (new,) = output.new_requests
    assert (new.prompt_token_ids, new.output_token_ids) == ([1, 2, 3, 4], [5])
    assert (new.num_computed_tokens, new.block_ids) == (2, ([9, 8],))
    assert (output.num_scheduled_tokens, output.total_num_scheduled_tokens) == ({"r": 2}, 2)
    assert (output.step_id, output.finished_request_ids) == (5, ["gone"])
    assert (request.num_computed_tokens, request.last_step_id) == (4, 5)
    assert step.token_budget == 98


def test_a_chunk_short_of_the_newest_token_promises_no_output():
    request = Request(make_message("r", 10))
    step_of().add_admitted(request, 9, ([1],))
    assert request.num_output_placeholders == 0


def test_reaching_the_newest_token_promises_one():
    request = Request(make_message("r", 10))
    step_of().add_admitted(request, 10, ([1],))
    assert request.num_output_placeholders == 1


def test_drafts_promise_one_more_each_and_are_handed_over():
    request = Request(make_message("r", 10))
    request.num_computed_tokens = 9
    request.draft_token_ids = [70, 71, 72]
    step = step_of()
    step.add_running(request, 3, ([],))  # A limit cut off the third draft.
    output = step.build([])
    assert output.draft_token_ids == {"r": [70, 71]}
    assert output.cached_requests[0].num_computed_tokens == 9
    assert request.num_output_placeholders == 3
    assert request.draft_token_ids == []


def test_with_a_token_in_flight_the_next_one_is_promised_on_top():
    request = Request(make_message("r", 10))
    request.num_computed_tokens, request.num_output_placeholders = 10, 1
    step_of().add_running(request, 1, ([],))
    assert (request.num_computed_tokens, request.num_output_placeholders) == (11, 2)
