"""When drafts by n-grams are switched on: answers of a real model said again, on a clock with fixed costs.

The answers are those of Qwen2.5-Coder 0.5B to prompts of ``benchmarks/speculation.py``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from octavo.control.request import Request
from octavo.device.spec_decode.drafter import SaidTokens
from octavo.device.spec_decode.ngram import NgramDrafter
from octavo.words.messages import ModelRunnerOutput, SchedulerOutput
from octavo.words.sampling_params import RequestOutputKind
from tests.fakes import ControlPlane

RECORDED: dict[str, list[tuple[list[int], list[int]]]] = json.loads(
    Path(__file__).with_name("recorded_answers.json").read_text()
)
MOST = 8
STEP, ROW, BETWEEN, LOOK = 10e-3, 1e-3, 0.5e-3, 50e-6
"""Seconds: of a step, of each of its rows, of what an engine does between two steps, of guessing or looking back."""


class Replay(ControlPlane):
    """One request at a time, whose answer is known, with n-gram drafts; ``seconds`` passed so far."""

    def __init__(self, *, speculates: bool = True, row: float = ROW) -> None:
        limits = {"max_model_len": 512, "max_num_batched_tokens": 512, "max_burst_seconds": 0.25}
        drafts = {"num_draft_tokens": MOST, "num_lookahead_tokens": MOST, "adapt_drafts": True}
        super().__init__(
            num_blocks=200,
            next_token=lambda name, position: self.texts[name][position],
            check=False,
            **limits,
            **(drafts | {"drafter_looks_back": True} if speculates else {}),
        )
        self.texts: dict[str, list[int]] = {}
        self.seconds = self.seconds_looking = 0.0
        self._row = row
        self.drafting: list[int] = []
        """Tokens said when each step that made drafts was taken, of the newest request."""
        self._drafter = NgramDrafter(2, 4)

    def answer(self, workload: str, number: int = 0) -> Request:
        """Say an answer again."""
        prompt, answer = RECORDED[workload][number]
        name = f"{workload} {len(self.texts)}"
        self.texts[name] = prompt + answer
        self.drafting = []
        request = self.add(name, prompt, max_tokens=len(answer), output_kind=RequestOutputKind.FINAL_ONLY)
        self.run()
        return request

    def update(self) -> list[object]:
        step, handle = self.in_flight.popleft()
        result = self.executor.sample(handle)
        spent = self._look(step, result)
        num_rows = sum(step.num_scheduled_tokens.values())
        seconds = step.num_decode_steps * (STEP + self._row * min(num_rows, 9)) + spent
        self.seconds += seconds + BETWEEN
        return self.scheduler.update_from_output(step, result, seconds=seconds, seconds_before=BETWEEN)

    def _look(self, step: SchedulerOutput, result: ModelRunnerOutput) -> float:
        for new in step.new_requests:
            self._drafter.add(0, new)
        (name,) = result.request_ids or [""]
        asked = step.num_drafts or step.num_trial_drafts
        request = self.scheduler.requests.get(name)
        if not asked or request is None:
            return 0.0
        known = self.texts[name][: request.num_tokens + len(result.sampled_token_ids[0])]
        if step.num_drafts:
            self.drafting.append(request.num_output_tokens)
            result.draft_token_ids = self._drafter.propose(said(name, known), step.num_drafts)
        else:
            result.draft_trials = self._drafter.look_back(said(name, known), step.num_trial_drafts)
        result.draft_seconds = LOOK
        self.seconds_looking += LOOK
        return LOOK


def said(name: str, tokens: Sequence[int]) -> SaidTokens:
    one = np.ones(1, dtype=np.int64)
    return SaidTokens(
        request_ids=[name],
        slots=0 * one,
        token_ids=np.array([tokens], dtype=np.int32),
        num_tokens=len(tokens) * one,
        num_computed=(len(tokens) - 2) * one,
        num_kept=one,
        is_sampled=one > 0,
        hidden=None,
        first_rows=0 * one,
    )


def test_where_an_answer_repeats_its_prompt_drafts_are_on_as_soon_as_that_is_seen() -> None:
    engine = Replay()
    engine.answer("edit")
    assert 0 < engine.drafting[0] <= 24, "the code begins after a sentence"
    engine.answer("edit", 1)
    assert engine.drafting[0] == 0, "as before"


def test_of_text_that_says_nothing_twice_no_draft_is_made() -> None:
    engine, tokens = Replay(), list(range(1_000, 1_160))
    for number in range(3):
        engine.texts[str(number)] = tokens
        engine.add(str(number), tokens[:32], max_tokens=128)
        engine.run()
    stats = engine.scheduler.stats()
    assert (stats.num_drafts, engine.drafting) == (0, [])
    assert stats.num_draft_trials > 300


@pytest.mark.parametrize("row", [1e-3, 2e-3])
def test_drafts_save_time_where_they_can_and_cost_next_to_none_elsewhere(row: float) -> None:
    """Each workload alone, as a share of the time of plain decoding."""
    ratios = {}
    for workload in RECORDED:
        ours, plain = Replay(row=row), Replay(row=row, speculates=False)
        for engine in (ours, plain):
            for number in (0, 1, 0, 1):
                engine.answer(workload, number)
        ratios[workload] = ours.seconds / plain.seconds
    assert ratios["edit"] < 1 / 1.8
    assert ratios["summary"] < 0.75
    assert max(ratios.values()) < 1.02


def test_when_one_kind_of_answer_follows_another_little_is_lost() -> None:
    ours, plain = Replay(), Replay(speculates=False)
    lost = {}
    for number in (0, 1):
        for workload in RECORDED:
            before = ours.seconds, plain.seconds
            ours.answer(workload, number)
            plain.answer(workload, number)
            lost[workload, number] = (ours.seconds - before[0]) / (plain.seconds - before[1])
    assert max(lost.values()) < 1.06
    assert ours.seconds < 0.9 * plain.seconds


def test_while_drafts_are_off_bursts_go_on_and_looking_back_takes_less_than_a_hundredth() -> None:
    ours, plain = Replay(), Replay(speculates=False)
    for engine in (ours, plain):
        for number in (0, 1):
            engine.answer("code", number)
    assert ours.scheduler.stats().num_draft_trials > 200
    assert ours.seconds_looking < 0.01 * ours.seconds
    assert ours.scheduler.stats().num_bursts <= plain.scheduler.stats().num_bursts + 8
