"""Beam searches among the requests of a scheduler: a group whose beams have all run chooses, and its beams fork.

What a group chooses is in ``beams.py``; here its beams share blocks, take seats and give them back.
"""

from __future__ import annotations

from octavo.control.kv.manager import KVCacheManager
from octavo.control.request import Request, RequestStatus
from octavo.control.scheduler.beams import NO_CANDIDATES, Beam
from octavo.control.scheduler.gates import Gates
from octavo.control.scheduler.roster import PREEMPTED, RUNNING, Roster
from octavo.words.messages import EngineCoreOutput, LogprobsRow


class BeamSearches:
    """Moves beams of the roster; ``num_forks`` counts how often one was copied."""

    def __init__(self, roster: Roster, kv_cache: KVCacheManager, gates: Gates, *, max_num_seqs: int) -> None:
        self._block_copies: list[tuple[int, int]] = []
        self.num_forks = 0
        self._roster = roster
        self._kv_cache = kv_cache
        self._gates = gates
        self._max_num_seqs = max_num_seqs

    def take_candidates(
        self, beam: Beam, rows: list[LogprobsRow] | None, outputs: dict[int, list[EngineCoreOutput]]
    ) -> None:
        """Note what may follow a beam; when all beams of its group are there, the best go on, or the search ends."""
        group, request = beam.group, beam.request
        beam.candidates = rows[0] if rows else NO_CANDIDATES
        if not group.is_ready:
            return
        branches = group.choose()
        if not branches:
            outputs.setdefault(request.client_index, []).extend(group.outputs())
        for each in group.without_branch(branches):
            self._kv_cache.free(each.request)
        for each in group.go_on_with(branches, self._fork):
            self._roster.let_go(each.request, RequestStatus.FINISHED_STOPPED)
        self._roster.drop_finished()

    def take_block_copies(self) -> list[tuple[int, int]]:
        """Pairs of blocks (from, to) to copy before the next step runs; begins anew."""
        copies, self._block_copies = self._block_copies, []
        return copies

    def _fork(self, parent: Request, request: Request) -> None:
        """Make a request that holds nothing a copy of its parent, blocks included where there is room for it."""
        roster = self._roster
        self.num_forks += 1
        roster.requests[request.request_id] = request
        request.take_over(parent)
        if request.status is PREEMPTED:
            return  # It waits, and is computed anew.
        has_seat = request.status is RUNNING or len(roster.running) < self._max_num_seqs
        may_run = has_seat and parent.status is RUNNING and not self._gates.holds(request)
        if may_run and (copies := self._kv_cache.fork(parent, request)) is not None:
            self._block_copies += copies
            request.num_computed_tokens = parent.num_computed_tokens
            if request.status is not RUNNING:
                request.status = RUNNING
                roster.join_running(request)
            return
        roster.let_wait(request)
