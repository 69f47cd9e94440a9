"""Grammars of requests: compiled beside the engine, kept for the next request, asked for masks while a step runs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from octavo.control.request import Request
from octavo.control.structured_output.closing import Closing, closing_of
from octavo.control.structured_output.grammar import Grammar, GrammarBackend, MaskRows
from octavo.words.errors import UnsupportedError
from octavo.words.messages import GrammarMasks, SchedulerOutput
from octavo.words.structured_outputs import StructuredOutputParams

MAX_CACHED_GRAMMARS = 64
ALL_ALLOWED = -1


class StructuredOutput(Protocol):
    """What the engine core does for constrained requests. It is a gate: a request waits while its grammar compiles."""

    num_masks: int

    def begin(self, request: Request) -> None:
        """A request came; quick, and safe in any thread. Raises what makes it impossible."""

    def holds(self, request: Request) -> bool:
        """Whether its grammar is still being made."""

    def take_failed(self) -> dict[str, str]:
        """Requests whose grammar could not be made, each with the reason, since the last call."""

    def begin_masks(self, step: SchedulerOutput, requests: Mapping[str, Request]) -> Future[GrammarMasks] | None:
        """Start to compute what the requests of a step may say next; None where none of them is constrained."""

    def shutdown(self) -> None: ...


class NoStructuredOutput:
    """For engines without a vocabulary: such a request is refused."""

    num_masks = 0

    def begin(self, request: Request) -> None:
        if request.sampling.params.structured_outputs is not None:
            raise UnsupportedError("structured_outputs need a tokenizer, and this engine has none: leave them out.")

    def holds(self, request: Request) -> bool:
        return False

    def take_failed(self) -> dict[str, str]:
        return {}

    def begin_masks(self, step: SchedulerOutput, requests: Mapping[str, Request]) -> Future[GrammarMasks] | None:
        return None

    def shutdown(self) -> None: ...


class GrammarConstraint:
    """The constraint of one request: a grammar, which may begin only after the end of reasoning."""

    def __init__(self, grammar: Grammar, closing: Closing, begins_after: Sequence[int] = ()) -> None:
        self.grammar = grammar
        self.closing = closing
        self._begins_after = tuple(begins_after)
        self._seen: tuple[int, ...] = ()

    @property
    def is_active(self) -> bool:
        return not self._begins_after

    def num_free(self, draft_token_ids: Sequence[int]) -> int | None:
        """How many tokens come before the first one that the grammar constrains; None where the drafts end first."""
        if self.is_active:
            return 0
        seen, end = self._seen, self._begins_after
        for index, draft in enumerate(draft_token_ids):
            seen = (*seen, draft)[-len(end) :]
            if seen == end:
                return index + 1
        return None

    def take(self, token_id: int) -> bool:
        if self.is_active:
            self.grammar.accept([token_id])
            return self.grammar.error is None and self.grammar.is_complete
        self._seen = (*self._seen, token_id)[-len(self._begins_after) :]
        if self._seen == self._begins_after:
            self._begins_after = ()
        return False


class PendingConstraint:
    """Stands in for a constraint that is being made; the gate replaces it before the request runs."""

    def __init__(self, made: Future[GrammarConstraint]) -> None:
        self.made = made

    def take(self, token_id: int) -> bool:
        raise AssertionError("a request ran before its grammar was made")


class _Asking(NamedTuple):
    """One request of a step, which may say ``num_left`` tokens more: rows before ``num_free`` are free."""

    request_id: str
    grammar: Grammar
    closing: Closing
    drafts: Sequence[int]
    num_free: int
    num_left: int

    def fill(self, rows: MaskRows) -> None:
        rows[: self.num_free] = ALL_ALLOWED
        held, drafts = rows[self.num_free :], self.drafts[self.num_free :]
        self.grammar.fill(held, drafts)
        first = self.closing.first_row(self.grammar, drafts, self.num_left - self.num_free)
        for row in held[first:] if first is not None else ():
            self.grammar.narrow(row)


class StructuredOutputManager:
    """Compiles on one thread of its own, caches (least recently used go first), and computes masks on another.

    ``make_backend`` is called once, with the first constrained request: an engine that has none pays nothing.
    """

    def __init__(self, make_backend: Callable[[], GrammarBackend]) -> None:
        self._make_backend = make_backend
        self._backend: GrammarBackend | None = None
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="octavo-grammar")
        self._masker = ThreadPoolExecutor(1, thread_name_prefix="octavo-mask")
        self._cache: OrderedDict[bytes, Grammar] = OrderedDict()
        self._cache_lock = Lock()
        self._failed: dict[str, str] = {}
        self.num_masks = 0

    def begin(self, request: Request) -> None:
        params = request.sampling.params.structured_outputs
        if params is None:
            return
        grammar = None if request.output_token_ids else self._cached(_key(params))
        request.constraint = (
            PendingConstraint(self._compiler.submit(self._constraint, request, params))
            if grammar is None
            else _constraint(request, params, grammar)
        )

    def holds(self, request: Request) -> bool:
        pending = request.constraint
        if not isinstance(pending, PendingConstraint):
            return False
        if not pending.made.done():
            return True
        error = pending.made.exception()
        if error is not None:
            self._failed[request.request_id] = str(error)
            return True
        request.constraint = pending.made.result()
        return False

    def take_failed(self) -> dict[str, str]:
        failed, self._failed = self._failed, {}
        return failed

    def begin_masks(self, step: SchedulerOutput, requests: Mapping[str, Request]) -> Future[GrammarMasks] | None:
        if self._backend is None:
            return None  # no request was constrained so far: a step costs nothing
        asking = []
        for request_id in step.num_scheduled_tokens:
            request = requests.get(request_id)
            constraint = _mask_of(request)
            drafts = step.draft_token_ids.get(request_id, [])
            num_free = None if constraint is None else constraint.num_free(drafts)
            if request is not None and constraint is not None and num_free is not None:
                num_left = request.sampling.max_tokens - request.num_output_tokens
                asking.append(_Asking(request_id, constraint.grammar, constraint.closing, drafts, num_free, num_left))
        if not asking:
            return None
        self.num_masks += len(asking)
        return self._masker.submit(self._masks, asking)

    def shutdown(self) -> None:
        self._compiler.shutdown(wait=False, cancel_futures=True)
        self._masker.shutdown(wait=False, cancel_futures=True)

    def _constraint(self, request: Request, params: StructuredOutputParams) -> GrammarConstraint:
        """On the compiler's thread. A request that comes back with output goes on where it was."""
        constraint = _constraint(request, params, self._grammar(params))
        for number, token_id in enumerate(request.output_token_ids):
            if constraint.is_active:
                constraint.closing.first_row(constraint.grammar, (), request.sampling.max_tokens - number)
            constraint.take(token_id)
        return constraint

    def _grammar(self, params: StructuredOutputParams) -> Grammar:
        if self._backend is None:
            self._backend = self._make_backend()
        key = _key(params)
        found = self._cached(key)
        if found is not None:
            return found
        made = self._backend.compile(params)
        with self._cache_lock:
            self._cache[key] = made
            if len(self._cache) > MAX_CACHED_GRAMMARS:
                self._cache.popitem(last=False)
            return made.copy()

    def _cached(self, key: bytes) -> Grammar | None:
        """A copy that nobody else has. Safe in any thread."""
        with self._cache_lock:
            if key not in self._cache:
                return None
            self._cache.move_to_end(key)
            return self._cache[key].copy()

    def _masks(self, asking: Sequence[_Asking]) -> GrammarMasks:
        assert self._backend is not None
        rows: dict[str, tuple[int, int]] = {}
        end = 0
        for each in asking:
            start, end = end, end + 1 + len(each.drafts)
            rows[each.request_id] = (start, end)
        bitmask = np.zeros((end, self._backend.num_mask_words), dtype=np.int32)
        failed = {}
        for each in asking:
            start, end = rows[each.request_id]
            each.fill(bitmask[start:end])
            if each.grammar.error is not None:
                failed[each.request_id] = each.grammar.error
        return GrammarMasks(rows, self._backend.num_mask_words, bitmask.tobytes(), failed)


def _key(params: StructuredOutputParams) -> bytes:
    """What of a constraint its grammar is made from."""
    return msgspec.msgpack.encode(msgspec.structs.replace(params, closing_tokens=None), order="deterministic")


def _constraint(request: Request, params: StructuredOutputParams, grammar: Grammar) -> GrammarConstraint:
    closing = closing_of(params.closing_tokens, is_json=params.is_json)
    return GrammarConstraint(grammar, closing, request.sampling.reasoning_end_ids)


def _mask_of(request: Request | None) -> GrammarConstraint | None:
    """The constraint to ask, if the request is constrained and its step ends with a token of its own."""
    if request is None or not isinstance(request.constraint, GrammarConstraint):
        return None
    return request.constraint if request.num_computed_tokens >= request.num_tokens else None
