from __future__ import annotations

import msgspec
import pytest

from octavo.device.worker.graphs import capture_steps
from octavo.words.messages import SchedulerOutput
from tests.device.worker.tiny_model import VOCAB_SIZE, kv_config

LIMITS = {"max_num_tokens": 64, "max_num_requests": 8, "vocab_size": VOCAB_SIZE}


def sizes(step: SchedulerOutput) -> tuple[int, int]:
    """(requests, tokens of each)."""
    (num_tokens,) = set(step.num_scheduled_tokens.values())
    return len(step.new_requests), num_tokens


def test_a_step_is_recorded_and_checked_at_two_other_sizes() -> None:
    steps = [sizes(step) for step in capture_steps(kv_config(), **LIMITS)]
    assert steps[1:] == [(1, 1), (3, 3)]
    assert steps[0] not in steps[1:]


@pytest.mark.parametrize("num_blocks", [3, 4, 6, 9, 64])
def test_no_two_tokens_of_a_step_share_a_slot(num_blocks: int) -> None:
    for step in capture_steps(kv_config(block_size=4, num_blocks=num_blocks), **LIMITS):
        blocks = [block for request in step.new_requests for group in request.block_ids for block in group]
        assert len(set(blocks)) == len(blocks)
        assert min(blocks) > 0 and max(blocks) < num_blocks


def test_made_up_steps_keep_within_the_engines_limits() -> None:
    config = msgspec.structs.replace(kv_config(), max_model_len=2)
    assert all(sizes(step)[1] <= 2 for step in capture_steps(config, **LIMITS))
    for step in capture_steps(kv_config(), **LIMITS | {"max_num_requests": 1}):
        assert sizes(step)[0] == 1
    for step in capture_steps(kv_config(), **LIMITS | {"max_num_tokens": 4}):
        assert sizes(step)[0] * sizes(step)[1] <= 4
