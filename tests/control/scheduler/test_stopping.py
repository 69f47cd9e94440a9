from __future__ import annotations

from typing import Any

from octavo.control.request import Request, RequestStatus
from octavo.control.scheduler.stopping import check_stop
from tests.fakes import EOS, make_message


def request_with(*output: int, max_total_tokens: int = 100, **options: Any) -> Request:
    request = Request(make_message("r", 4, **options))
    request.max_total_tokens = max_total_tokens
    request.append_output_tokens(output)
    return request


def test_an_ordinary_token_goes_on():
    request = request_with(50)
    assert check_stop(request) is None
    assert request.stop_reason is None


def test_end_of_sequence_stops_without_a_stop_reason():
    request = request_with(50, EOS)
    assert check_stop(request) is RequestStatus.FINISHED_STOPPED
    assert request.stop_reason is None


def test_a_stop_id_stops_and_is_the_reason():
    request = request_with(50, stop_token_ids=[50])
    assert check_stop(request) is RequestStatus.FINISHED_STOPPED
    assert request.stop_reason == 50


def test_an_eos_that_is_also_a_stop_id_counts_as_eos():
    request = request_with(EOS, stop_token_ids=[EOS])
    assert check_stop(request) is RequestStatus.FINISHED_STOPPED
    assert request.stop_reason is None


def test_ignore_eos_leaves_stop_ids():
    assert check_stop(request_with(EOS, ignore_eos=True, stop_token_ids=[50])) is None
    assert check_stop(request_with(50, ignore_eos=True, stop_token_ids=[50])) is RequestStatus.FINISHED_STOPPED


def test_the_last_token_allowed_ends_by_length():
    assert check_stop(request_with(50, 51, max_total_tokens=7)) is None
    assert check_stop(request_with(50, 51, 52, max_total_tokens=7)) is RequestStatus.FINISHED_LENGTH


def test_a_stop_at_the_last_token_is_a_stop():
    assert check_stop(request_with(50, 51, EOS, max_total_tokens=7)) is RequestStatus.FINISHED_STOPPED


def test_before_min_tokens_neither_eos_nor_stop_ids_count():
    assert check_stop(request_with(EOS, min_tokens=2)) is None
    assert check_stop(request_with(60, 50, min_tokens=2, stop_token_ids=[50])) is None
    assert check_stop(request_with(60, 61, EOS, min_tokens=2)) is RequestStatus.FINISHED_STOPPED


def test_length_ends_a_request_that_is_short_of_min_tokens():
    assert check_stop(request_with(60, EOS, min_tokens=9, max_total_tokens=6)) is RequestStatus.FINISHED_LENGTH
