"""Beam search in the scheduler: which beams live on, and whose blocks they share."""

from __future__ import annotations

import math
from typing import Any

import pytest

from octavo.control.request import Request, RequestStatus
from octavo.control.scheduler.beams import BeamGroup, Branch
from octavo.words.beam_search import BeamSearch
from octavo.words.messages import LogprobsRow, ModelRunnerOutput
from tests.fakes import EOS, ControlPlane, full_attention, make_message, sliding_window


def group_of(width: int, *, max_tokens: int = 8, **shape: Any) -> BeamGroup:
    request = Request(make_message(max_tokens=max_tokens))
    request.max_total_tokens = request.num_prompt_tokens + max_tokens
    return BeamGroup(request, BeamSearch(width=width, **shape))


def offer(group: BeamGroup, *candidates: dict[int, float]) -> list[Branch]:
    """Give each beam its candidates; the branches that are chosen."""
    for beam, each in zip(group.beams, candidates, strict=True):
        best = sorted(each.items(), key=lambda pair: -pair[1])
        beam.candidates = LogprobsRow([0, *(i for i, _ in best)], [0.0, *(p for _, p in best)], 1)
    assert group.is_ready
    return group.choose()


def follow(group: BeamGroup, branches: list[Branch]) -> None:
    beams = [group.new_beam() for _ in branches]
    for beam, branch in zip(beams, branches, strict=True):
        beam.request.take_over(branch.parent.request)
        beam.grow(branch, branch.parent.rows)
    group.beams = beams


def test_the_best_continuations_of_all_beams_live_on() -> None:
    group = group_of(2)
    follow(group, offer(group, {10: -0.1, 11: -2.0, 12: -3.0}))
    branches = offer(group, {20: -3.0, 21: -4.0}, {30: -0.1, 31: -0.2})
    assert [(branch.token_id, branch.parent.rows[0].token_ids[0]) for branch in branches] == [(30, 11), (31, 11)]
    assert [branch.score for branch in branches] == pytest.approx([-2.1, -2.2])


def test_an_end_among_the_best_is_an_answer_and_one_behind_them_is_forgotten() -> None:
    group = group_of(2)
    branches = offer(group, {EOS: -0.1, 11: -0.2, 12: -0.3, 13: -0.4})
    assert [branch.token_id for branch in branches] == [11, 12]
    assert [(answer.rows[0].token_ids[0], answer.status) for answer in group.answers] == [
        (EOS, RequestStatus.FINISHED_STOPPED)
    ]
    follow(group, branches)
    offer(group, {20: -0.1, 21: -0.1, EOS: -3.0}, {30: -0.1, EOS: -4.0})
    assert len(group.answers) == 1


@pytest.mark.parametrize(("early_stopping", "goes_on"), [(True, False), (False, True), ("never", True)])
def test_early_stopping_ends_with_enough_answers(early_stopping: bool | str, goes_on: bool) -> None:
    group = group_of(1, early_stopping=early_stopping)
    branches = offer(group, {EOS: -0.5, 11: -0.4 if goes_on else -0.6, 12: -3.0})
    if goes_on:
        follow(group, branches)
        branches = offer(group, {EOS: -0.9, 21: -0.8})
        assert branches or not goes_on
    else:
        assert branches == [] and group.answers[0].score == -0.5


def test_the_length_counts_by_its_penalty() -> None:
    group = group_of(1, max_tokens=2, length_penalty=2.0)
    follow(group, offer(group, {10: -1.0, 11: -2.0}))
    assert offer(group, {20: -1.0, 21: -2.0}) == []
    (answer,) = group.answers
    assert (answer.score, answer.status) == (-2.0 / 2**2, RequestStatus.FINISHED_LENGTH)


class BeamPlane(ControlPlane):
    """A control plane whose model offers candidates that follow from the newest tokens of a beam."""

    most_blocks = 0

    def _break_logits(self, result: ModelRunnerOutput) -> ModelRunnerOutput:
        rows = zip(result.request_ids, result.sampled_token_ids, strict=True)
        result.logprobs = [[self._candidates(request_id)] if ids else None for request_id, ids in rows]
        self.most_blocks = max(self.most_blocks, self.kv_cache.num_usable_blocks - self.kv_cache.num_free_blocks)
        return super()._break_logits(result)

    def _candidates(self, request_id: str) -> LogprobsRow:
        spread = sum(self.scheduler.requests[request_id].all_token_ids[-3:]) % 7
        best = [(100 + spread + rank, -0.1 * (rank + 1) - 0.05 * spread) for rank in range(8)]
        return LogprobsRow([0, *(token for token, _ in best)], [0.0, *(logprob for _, logprob in best)], 1)

    def search(self, name: str = "r", prompt: int = 20, *, width: int = 4) -> None:
        """Queue a search for as many answers as it has beams, of ten tokens each."""
        shape = BeamSearch(width=width)
        message = make_message(name, prompt, max_tokens=10, ignore_eos=True, n=width, beam_search=shape)
        message.choice_ids = (name, *(f"{name}-{number}" for number in range(1, width)))
        self.scheduler.add_request(Request(message, self.hasher))

    def answers(self) -> dict[str, list[int]]:
        assert self.kv_cache.num_free_blocks == self.kv_cache.num_usable_blocks
        return {choice_id: self.token_ids(choice_id) for choice_id in sorted(self.outputs)}


@pytest.mark.parametrize("length", range(47, 65))
def test_beams_share_what_they_have_in_common(length: int) -> None:
    plane = BeamPlane()
    plane.search(prompt=length)
    plane.run()
    num_prompt_blocks = math.ceil(length / 16)
    assert num_prompt_blocks < plane.most_blocks <= num_prompt_blocks + 8, "no more than two of each beam's own"
    assert [len(ids) for ids in plane.answers().values()] == [10] * 4
    assert plane.scheduler.stats().num_beam_forks > 3


@pytest.mark.parametrize(
    "ways",
    [
        {"max_num_batched_tokens": 3},
        {"max_num_seqs": 1},
        {"max_num_seqs": 3},
        {"num_blocks": 5},
        {"num_blocks": 6, "max_num_seqs": 3},
        {"enable_caching": False},
        {"policy": "priority"},
        {"max_steps_in_flight": 2},
        {"max_steps_in_flight": 2, "num_blocks": 6},
        {"specs": {"layer": full_attention(), "window": sliding_window(24)}},
    ],
    ids=str,
)
def test_answers_do_not_depend_on_room_seats_or_steps_in_flight(ways: dict[str, Any]) -> None:
    plain, plane = BeamPlane(), BeamPlane(**ways)
    for each in (plain, plane):
        each.search("r", prompt=20)
        each.search("s", prompt=33, width=3)
        each.run()
    assert plane.answers() == plain.answers()
    if "num_blocks" in ways:
        assert plane.scheduler.stats().num_preemptions > 0


def test_an_abort_ends_all_beams() -> None:
    plane = BeamPlane()
    plane.search()
    for _ in range(4):
        plane.step()
    assert len(plane.scheduler.requests) == 4
    plane.scheduler.abort_requests(["r", "r-1", "r-2", "r-3"])
    plane.run()
    assert plane.answers() == {} and not plane.scheduler.requests


def test_a_beam_that_fails_ends_the_search_with_its_reason() -> None:
    plane = BeamPlane()
    plane.search()
    for _ in range(4):
        plane.step()
    plane.failures["r#3"] = "NaN"
    plane.run()
    assert {choice_id: plane.last_output(choice_id).error for choice_id in plane.outputs} == dict.fromkeys(
        ["r", "r-1", "r-2", "r-3"], "NaN"
    )
    assert plane.answers()["r"] == []


def test_what_is_lost_in_a_failed_step_is_computed_again() -> None:
    plain, plane = BeamPlane(), BeamPlane()
    for each in (plain, plane):
        each.search()
    for _ in range(5):
        plane.step()
    step = plane.scheduler.schedule()
    plane.executor.forget_requests()
    plane.scheduler.start_over([step])
    for each in (plain, plane):
        each.run()
    assert plane.answers() == plain.answers()


def test_an_executor_without_a_model_finds_no_answers_and_says_so() -> None:
    plane = ControlPlane()
    message = make_message("r", 4, n=2, beam_search=BeamSearch(width=2))
    message.choice_ids = ("r", "r-1")
    plane.scheduler.add_request(Request(message, plane.hasher))
    plane.run()
    assert "found 0 answers" in str(plane.last_output("r").error) and "r-1" in plane.outputs
