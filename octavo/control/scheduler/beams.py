"""Beam search: which continuations live on, and which answers have ended.

A beam is a request of the scheduler like any other, but no token is its own choice: it brings candidates, and waits
until all beams of its group have brought theirs. The group then chooses. So beams need not share a step: any of them
may be preempted, computed in chunks or computed again. The rules are those of Transformers' beam search.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.control.request import FINISH_REASONS, Request, RequestStatus
from octavo.control.scheduler.stopping import tokenless_end
from octavo.words.beam_search import BeamSearch, num_candidates
from octavo.words.messages import EngineCoreOutput, FinishReason, LogprobsRow

NO_CANDIDATES = LogprobsRow([], [], 0)
"""What an executor without a model offers."""


@dataclass(eq=False)
class Beam:
    """One beam: its request, its log-probability, a row per token of its answer, and what may follow.

    ``candidates``: the best in order, behind the entry of a sampled token that nobody wants; None: not computed yet.
    """

    group: BeamGroup
    request: Request
    score: float = 0.0
    rows: list[LogprobsRow] = field(default_factory=list)
    candidates: LogprobsRow | None = None

    def grow(self, branch: Branch, rows: Sequence[LogprobsRow]) -> None:
        """Go on with a branch, whose parent had these rows. Workers must be told: they have sampled something else."""
        self.score, self.rows, self.candidates = branch.score, [*rows, branch.row], None
        self.request.append_output_token(branch.token_id)
        self.request.is_rewritten = True


class Branch(NamedTuple):
    """A beam that lives on: its parent, and the row of its newest token."""

    parent: Beam
    row: LogprobsRow
    score: float

    @property
    def token_id(self) -> int:
        return self.row.token_ids[0]


class Answer(NamedTuple):
    """An answer that has ended; ``score`` is what answers are ranked by."""

    rows: list[LogprobsRow]
    score: float
    status: RequestStatus
    stop_reason: int | None


def is_idle(request: Request) -> bool:
    """Whether it is a beam with nothing to compute until others of its group have run."""
    return request.beam is not None and request.beam.candidates is not None


def only_idle_beams(running: Sequence[Request]) -> bool:
    """Whether beams that wait for others are all that runs: those others may lack their room."""
    return bool(running) and all(map(is_idle, running))


class BeamGate:
    """Holds beams back that brought their candidates and were preempted then: there is nothing to compute in them."""

    def holds(self, request: Request) -> bool:
        return is_idle(request)


class BeamGroup:
    """The beams of one request, and the best answers that have ended, best first: as many as there are beams."""

    def __init__(self, root: Request, shape: BeamSearch) -> None:
        self.beams = [Beam(self, root)]
        self.answers: list[Answer] = []
        self.choice_ids = root.choice_ids
        self._wants_logprobs = root.sampling.params.logprobs is not None
        self._root = root
        self._num_made = 1
        self._shape = shape
        self._max_tokens = root.max_total_tokens - root.num_prompt_tokens
        self._eos_token_ids = root.eos_token_ids
        self._end_token_ids = root.end_token_ids
        self._num_logprobs = root.sampling.params.logprobs or 0
        self._can_improve = True

    @property
    def is_ready(self) -> bool:
        """Whether all beams have brought their candidates."""
        return all(beam.candidates is not None for beam in self.beams)

    def without_branch(self, branches: Sequence[Branch]) -> list[Beam]:
        """The beams that end here: none of their candidates was chosen."""
        parents = {branch.parent for branch in branches}
        return [beam for beam in self.beams if beam not in parents]

    def go_on_with(self, branches: Sequence[Branch], fork: Callable[[Request, Request], None]) -> list[Beam]:
        """Each beam takes its best branch; others go to beams that end here or to new ones, by ``fork``.

        Returns the beams that are left over.
        """
        spare = self.without_branch(branches)
        taken: set[Beam] = set()
        grown = []
        for branch in branches:
            beam = branch.parent
            if beam in taken:
                beam = spare.pop() if spare else self.new_beam()
                beam.candidates = None
                fork(branch.parent.request, beam.request)
            taken.add(beam)
            grown.append((beam, branch, branch.parent.rows))
        # Only now that all forks are made may a parent have a token more.
        for beam, branch, rows in grown:
            beam.grow(branch, rows)
        self.beams = [beam for beam, _, _ in grown]
        return spare

    def new_beam(self) -> Beam:
        """One more, with a request that has nothing yet."""
        self._num_made += 1
        request = self._root.twin(f"{self._root.request_id}#{self._num_made}")
        beam = request.beam = Beam(self, request)
        return beam

    def choose(self) -> list[Branch]:
        """Take all candidates; the beams that live on, best first, or none when the search is over."""
        branches: list[Branch] = []
        ended: list[Answer] = []
        num_tokens = len(self.beams[0].rows) + 1
        for place, branch in enumerate(self._best_candidates()):
            status = self._end(branch.token_id, num_tokens)
            if status is None:
                branches.append(branch)
            elif place < self._shape.width and self._can_improve:
                ended.append(self._answer(branch, status, num_tokens))
        best_first = sorted([*self.answers, *ended], key=lambda answer: -answer.score)
        self.answers = best_first[: self._shape.width]
        del branches[self._shape.width :]
        return branches if branches and not self._is_over(branches[0].score, num_tokens) else []

    def outputs(self) -> list[EngineCoreOutput]:
        """The last outputs of a search that is over: an answer for each choice, as far as there are."""
        asked = self.answers[: len(self.choice_ids)]
        return [self._output(*each) for each in itertools.zip_longest(self.choice_ids, asked)]

    def _output(self, choice_id: str, answer: Answer | None) -> EngineCoreOutput:
        output = tokenless_end(self._root, choice_id)
        output.num_preemptions = sum(beam.request.num_preemptions for beam in self.beams)
        if answer is None:
            output.finish_reason = FinishReason.ERROR
            output.error = f"the search found {len(self.answers)} answers only: what is allowed leaves no others."
        else:
            output.new_token_ids = [row.token_ids[0] for row in answer.rows]
            output.new_logprobs = answer.rows if self._wants_logprobs else None
            output.finish_reason, output.stop_reason = FINISH_REASONS[answer.status], answer.stop_reason
        return output

    def _best_candidates(self) -> list[Branch]:
        """As many that ``width`` live on whatever ends, from all beams together."""
        scored = [
            (-(beam.score + logprob), place, token_id, rank)
            for place, beam in enumerate(self.beams)
            if beam.candidates is not None
            for rank, (token_id, logprob) in enumerate(_best(beam.candidates), 1)
        ]
        scored.sort()
        most = num_candidates(self._shape.width, len(self._end_token_ids))
        return [
            Branch(self.beams[place], self._row(self.beams[place], rank), -score)
            for score, place, _, rank in scored[:most]
        ]

    def _row(self, beam: Beam, rank: int) -> LogprobsRow:
        """The candidate of this rank as a token that was chosen, with the best ones that were asked for."""
        assert beam.candidates is not None
        ids, logprobs, most = beam.candidates.token_ids, beam.candidates.logprobs, self._num_logprobs + 1
        return LogprobsRow([ids[rank], *ids[1:most]], [logprobs[rank], *logprobs[1:most]], rank)

    def _end(self, token_id: int, num_tokens: int) -> RequestStatus | None:
        if token_id in self._end_token_ids:
            return RequestStatus.FINISHED_STOPPED
        return RequestStatus.FINISHED_LENGTH if num_tokens >= self._max_tokens else None

    def _answer(self, branch: Branch, status: RequestStatus, num_tokens: int) -> Answer:
        stopped_by_id = status is RequestStatus.FINISHED_STOPPED and branch.token_id not in self._eos_token_ids
        return Answer(
            rows=[*branch.parent.rows, branch.row],
            score=branch.score / num_tokens**self._shape.length_penalty,
            status=status,
            stop_reason=branch.token_id if stopped_by_id else None,
        )

    def _is_over(self, best_score: float, num_tokens: int) -> bool:
        if len(self.answers) < self._shape.width:
            return False
        penalty, early_stopping = self._shape.length_penalty, self._shape.early_stopping
        length = self._max_tokens if early_stopping == "never" and penalty > 0 else num_tokens
        self._can_improve = best_score / length**penalty > self.answers[-1].score
        return early_stopping is True or not self._can_improve


def _best(candidates: LogprobsRow) -> Sequence[tuple[int, float]]:
    return list(zip(candidates.token_ids[1:], candidates.logprobs[1:], strict=True))
