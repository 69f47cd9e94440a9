from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.device.sample.logits_processors import SamplingBatch
from octavo.device.sample.thinking_budget import ThinkingBudget
from octavo.words.messages import Thinking
from tests.device.sample.test_sampler import request

BEGIN, END = (20,), (30, 31, 32)


def forced(*outputs: list[int], budget: int = 3, begin: tuple[int, ...] = BEGIN) -> list[int | None]:
    """The token that must follow each output of one request, the only one that is left."""
    processor, prompt = ThinkingBudget(), [1, 30, 31, 32]
    thinking = Thinking(begin_ids=begin, end_ids=END)
    processor.add(0, request(prompt, thinking=thinking, thinking_token_budget=budget))
    found: list[int | None] = []
    for output in outputs:
        tokens = np.array([prompt + output], dtype=np.int32)
        logits = torch.zeros(1, 40)
        changed = processor.apply(logits, SamplingBatch([0], np.array([tokens.size]), tokens))
        left = torch.nonzero(logits[0] > -torch.inf)[:, 0].tolist()
        assert changed == (len(left) == 1)
        found.append(left[0] if changed else None)
    return found


def test_the_end_is_forced_token_by_token_and_nothing_after_it() -> None:
    thoughts = [20, 5, 6, 7]
    steps = [thoughts[:3], thoughts, [*thoughts, 30], [*thoughts, 30, 31], [*thoughts, *END], [*thoughts, *END, 9]]
    assert forced(*steps) == [None, 30, 31, 32, None, None]


def test_thoughts_that_never_began_or_ended_in_time_are_left_alone() -> None:
    assert forced([5, 6, 7, 8, 9], [20, *END, 5, 6, 7, 8], budget=4) == [None, None]
    assert forced([5, 6, 7], begin=()) == [30]


def test_an_end_that_began_by_itself_is_not_begun_twice() -> None:
    assert forced([20, 5, 30, 31], [20, 5, 30, 31, 32]) == [32, None]
    assert forced([20, 30, 31, 30], [20, 30, 31, 30, 31]) == [31, 32]


def test_drafts_that_think_on_behind_the_end_are_wrong_and_nothing_is_said_of_them() -> None:
    thoughts = [20, 5, 6, 7]
    assert forced([*thoughts, 8, 8, 8], [*thoughts, *[8] * 9]) == [None, None]


def test_what_is_forced_keeps_the_logit_that_the_model_gave_it() -> None:
    processor = ThinkingBudget()
    processor.add(0, request([1], thinking=Thinking(begin_ids=(), end_ids=END), thinking_token_budget=0))
    logits = torch.arange(80, dtype=torch.float32).reshape(2, 40)
    logits[1, 30] = -torch.inf
    batch = SamplingBatch([0, 0], np.array([1, 1]), np.array([[1]], dtype=np.int32))
    assert processor.apply(logits, batch)
    assert logits[:, 30].tolist() == [30.0, 0.0]
    assert (logits > -torch.inf).sum() == 2


@pytest.mark.parametrize("number", [0, 1])
def test_a_budget_of_nothing_ends_thoughts_at_their_begin(number: int) -> None:
    assert forced([20, *range(5, 5 + number)], budget=number) == [30]
