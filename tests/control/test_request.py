from __future__ import annotations

import pytest

from octavo.control.kv.block_hash import make_block_hasher
from octavo.control.request import Request, RequestStatus
from octavo.words.messages import FinishReason
from tests.fakes import EOS, make_message


def test_a_request_starts_with_its_prompt_and_nothing_computed():
    request = Request(make_message("r", [1, 2, 3]))
    assert (request.num_tokens, request.num_prompt_tokens, request.num_output_tokens) == (3, 3, 0)
    assert request.num_computed_tokens == 0
    assert request.status is RequestStatus.WAITING
    assert request.finish_reason is None


def test_a_replay_brings_its_output_tokens():
    request = Request(make_message("r", [1, 2, 3], output_token_ids=[4, 5]))
    assert request.all_token_ids == [1, 2, 3, 4, 5]
    assert request.output_token_ids == [4, 5]
    assert request.num_output_tokens == 2


def test_appending_leaves_the_message_as_it_was():
    message = make_message("r", [1, 2, 3])
    Request(message).append_output_tokens([4, 5])
    assert message.prompt_token_ids == [1, 2, 3]
    assert message.output_token_ids == []


def test_a_block_is_hashed_with_the_token_that_fills_it():
    request = Request(make_message("r", [1, 2, 3]), make_block_hasher(4))
    assert request.block_hashes == []
    request.append_output_token(4)
    assert len(request.block_hashes) == 1
    request.append_output_tokens([5, 6, 7])
    assert len(request.block_hashes) == 1
    request.append_output_tokens([8, 9, 10, 11, 12, 13])
    whole = Request(make_message("w", list(range(1, 14))), make_block_hasher(4))
    assert request.block_hashes == whole.block_hashes
    assert len(whole.block_hashes) == 3


def test_without_a_hasher_nothing_is_hashed():
    request = Request(make_message("r", 64))
    request.append_output_tokens(range(64))
    assert request.block_hashes == []


def test_ends_are_eos_and_stop_ids():
    request = Request(make_message("r", 4, stop_token_ids=[11, 12]))
    assert request.eos_token_ids == {EOS}
    assert request.end_token_ids == {EOS, 11, 12}


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (RequestStatus.RUNNING, None),
        (RequestStatus.PREEMPTED, None),
        (RequestStatus.FINISHED_STOPPED, FinishReason.STOP),
        (RequestStatus.FINISHED_LENGTH, FinishReason.LENGTH),
        (RequestStatus.FINISHED_ABORTED, FinishReason.ABORT),
        (RequestStatus.FINISHED_ERROR, FinishReason.ERROR),
    ],
)
def test_every_finished_status_has_a_reason(status: RequestStatus, reason: FinishReason | None):
    request = Request(make_message())
    request.status = status
    assert request.finish_reason == reason
    assert request.is_finished == (reason is not None)
