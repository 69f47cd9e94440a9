"""An executor without a model: it makes up tokens, and holds the scheduler to its word.

Tests, benchmarks of the control plane and the simulator run on it. What it does with a step is what a worker does:
keep request state, write keys and values to slots, read them back. Instead of keys and values a slot holds a number
that stands for the whole prefix up to its token, so a block that was shared, reused or given back wrongly is found
when it is read.
"""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from octavo.util.spans import Span
from octavo.words.errors import UnsupportedError
from octavo.words.kv_cache_spec import (
    AnyKVCacheSpec,
    ChunkedLocalAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    SlidingWindowSpec,
)
from octavo.words.messages import (
    CachedRequestData,
    GrammarMasks,
    LogprobsRow,
    ModelRunnerOutput,
    NewRequestData,
    ResolvedSampling,
    SchedulerOutput,
)

TokenFunction: TypeAlias = Callable[[str, int], int]
"""(request id, position) -> the token there. It must always give the same answer."""

VOCABULARY_SIZE = 32_000


def scattered_token(request_id: str, position: int) -> int:
    """A token that looks random and is the same in every process."""
    return zlib.crc32(f"{request_id}:{position}".encode()) % VOCABULARY_SIZE


class Clock(Protocol):
    """What passes time: the module ``time``, or a test's own."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


class InconsistentStep(Exception):
    """A step that no worker could run, or that would read or destroy another request's keys and values."""


@dataclass
class _RequestState:
    """What a worker knows about a request. ``prefixes[i]`` stands for tokens 0..i."""

    request_id: str
    sampling: ResolvedSampling
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: list[list[int]]
    prefixes: list[int] = field(default_factory=list)
    unreported_rejections: dict[int, int] = field(default_factory=dict)
    """By step: rejected drafts that the scheduler still counts, because the step has not returned."""

    def extend_prefixes(self, token_ids: Sequence[int]) -> list[int]:
        """The prefixes with further tokens appended; a new list, so drafts leave no trace."""
        prefixes = self.prefixes.copy()
        for token_id in token_ids:
            prefixes.append(hash((prefixes[-1] if prefixes else 0, token_id)))
        return prefixes


@dataclass
class _StepInFlight:
    """A step that was executed and not yet sampled; ``writers`` maps each block written to its request."""

    result: ModelRunnerOutput
    ready_at: float
    states: list[_RequestState] = field(default_factory=list)
    writers: dict[int, str] = field(default_factory=dict)


class SimulatedExecutor:
    """Runs steps in no time, or in ``step_seconds`` each (a number, or a function of the step), one after the other.

    A burst takes the time of its steps.

    ``next_token`` is the model. ``next_draft`` guesses ``num_draft_tokens`` tokens ahead after each step, and the
    guesses that the scheduler hands back are verified against ``next_token``. With ``check`` every step is checked
    as far as a worker could tell and beyond (raises InconsistentStep); the time grows with the context.
    """

    def __init__(
        self,
        specs: Mapping[str, AnyKVCacheSpec],
        *,
        step_seconds: float | Callable[[SchedulerOutput], float] = 0.0,
        next_token: TokenFunction = scattered_token,
        next_draft: TokenFunction | None = None,
        num_draft_tokens: int = 0,
        max_steps_in_flight: int = 1,
        available_bytes: int = 1 << 30,
        check: bool = True,
    ) -> None:
        self.max_steps_in_flight = max_steps_in_flight
        self._specs = dict(specs)
        self._step_seconds = step_seconds
        self.clock: Clock = time
        """What its steps pass; may be replaced by one's own."""
        self._available_bytes = available_bytes
        self._next_token = next_token
        self._next_draft = next_draft
        self._num_draft_tokens = num_draft_tokens if next_draft is not None else 0
        self._check = check
        self._states: dict[str, _RequestState] = {}
        self._in_flight: deque[_StepInFlight] = deque()
        self._groups: list[KVCacheSpec] = []
        self._slots: list[list[int]] = []

    def get_kv_cache_specs(self) -> dict[str, AnyKVCacheSpec]:
        return self._specs

    def drafter_kv_cache_specs(self) -> dict[str, AnyKVCacheSpec]:
        return {}

    def shared_layers(self) -> dict[str, str]:
        return {}

    def preferred_block_sizes(self) -> Sequence[int]:
        return ()

    def determine_available_memory(self) -> int:
        """What it was told: nothing is allocated."""
        return self._available_bytes

    def initialize_from_config(self, config: KVCacheConfig) -> None:
        self._groups = [group.spec for group in config.groups]
        if self._check:
            self._slots = [[0] * (config.num_blocks * spec.block_size) for spec in self._groups]

    def warm_up(self) -> None:
        pass

    def execute(self, step: SchedulerOutput) -> _StepInFlight:
        """Run the step at once; its result is held back until ``sample``."""
        if len(self._in_flight) >= self.max_steps_in_flight:
            raise InconsistentStep(f"step {step.step_id}: {len(self._in_flight)} steps are in flight already")
        states = self._take_step(step)
        seconds = self._step_seconds(step) if callable(self._step_seconds) else self._step_seconds
        seconds *= step.num_decode_steps
        ready_at = max(self.clock.monotonic(), self._in_flight[-1].ready_at if self._in_flight else 0.0) + seconds
        result = ModelRunnerOutput(
            step_id=step.step_id,
            request_ids=list(step.num_scheduled_tokens),
            sampled_token_ids=[[] for _ in states],
            logprobs=[None if state.sampling.params.logprobs is None else [] for state in states],
            num_decode_steps=step.num_decode_steps,
        )
        in_flight = _StepInFlight(result, ready_at, states)
        for _ in range(step.num_decode_steps):
            if self._check:
                self._write_and_read(step, in_flight)
            for row, state in enumerate(states):
                self._run(row, state, step, result)
        self._in_flight.append(in_flight)
        return in_flight

    def sample(self, handle: _StepInFlight, grammar_masks: GrammarMasks | None = None) -> ModelRunnerOutput:
        """Return the oldest step's result, waiting out its time."""
        if not self._in_flight or self._in_flight[0] is not handle:
            raise InconsistentStep(f"step {handle.result.step_id} is not the oldest in flight")
        if self._step_seconds:
            self.clock.sleep(max(handle.ready_at - self.clock.monotonic(), 0.0))
        self._in_flight.popleft()
        for state in handle.states:
            state.unreported_rejections.pop(handle.result.step_id, None)
        return handle.result

    def start_profile(self, with_ops: bool = False) -> None:
        pass

    def stop_profile(self) -> list[Span]:
        return []

    def forget_requests(self) -> None:
        self._states.clear()
        self._in_flight.clear()

    def collective_rpc(self, name: str, *args: Any) -> list[Any]:
        raise UnsupportedError(f"collective_rpc({name!r}): the simulated executor has no workers.")

    def check_health(self) -> None:
        pass

    def shutdown(self) -> None:
        self.forget_requests()

    # ---- request state ---------------------------------------------------------------------------------------------

    def _take_step(self, step: SchedulerOutput) -> list[_RequestState]:
        """Drop, add and extend requests as told; return those of the step in row order."""
        for request_id in (*step.finished_request_ids, *step.preempted_request_ids):
            if self._states.pop(request_id, None) is None:
                raise InconsistentStep(f"step {step.step_id} drops {request_id!r}, which is unknown")
        if self._check:
            self._copy_blocks(step.block_copies)
        for new in step.new_requests:
            self._add(step, new)
        for cached in step.cached_requests:
            self._extend(step, cached)
        told = {new.request_id for new in step.new_requests} | {cached.request_id for cached in step.cached_requests}
        if told != step.num_scheduled_tokens.keys():
            raise InconsistentStep(
                f"step {step.step_id} schedules {set(step.num_scheduled_tokens)} but tells of {told}"
            )
        if sum(step.num_scheduled_tokens.values()) != step.total_num_scheduled_tokens:
            raise InconsistentStep(f"step {step.step_id}: the total is not the sum")
        return [self._states[request_id] for request_id in step.num_scheduled_tokens]

    def _add(self, step: SchedulerOutput, new: NewRequestData) -> None:
        if new.request_id in self._states:
            raise InconsistentStep(f"step {step.step_id}: {new.request_id!r} is new but known")
        state = self._states[new.request_id] = _RequestState(
            request_id=new.request_id,
            sampling=new.sampling,
            token_ids=new.prompt_token_ids + new.output_token_ids,
            num_prompt_tokens=len(new.prompt_token_ids),
            num_computed_tokens=new.num_computed_tokens,
            block_ids=[list(ids) for ids in new.block_ids],
        )
        if self._check:
            state.prefixes = state.extend_prefixes(state.token_ids)

    def _extend(self, step: SchedulerOutput, cached: CachedRequestData) -> None:
        state = self._states.get(cached.request_id)
        if state is None:
            raise InconsistentStep(f"step {step.step_id}: {cached.request_id!r} is unknown")
        expected = state.num_computed_tokens + sum(state.unreported_rejections.values())
        if cached.num_computed_tokens != expected:
            raise InconsistentStep(
                f"step {step.step_id}: {cached.request_id!r} has {expected} computed tokens, "
                f"not {cached.num_computed_tokens}"
            )
        for ids, new_ids in zip(state.block_ids, cached.new_block_ids, strict=True):
            ids.extend(new_ids)

    # ---- tokens ----------------------------------------------------------------------------------------------------

    def _run(self, row: int, state: _RequestState, step: SchedulerOutput, result: ModelRunnerOutput) -> None:
        """Compute the request's tokens of this step and sample what follows them."""
        request_id = state.request_id
        drafts = step.draft_token_ids.get(request_id, [])
        start = state.num_computed_tokens
        end = start + step.num_scheduled_tokens[request_id]
        num_known = len(state.token_ids)
        if end > num_known + len(drafts) or (drafts and end < num_known + len(drafts)):
            raise InconsistentStep(
                f"step {step.step_id}: {request_id!r} has {num_known} tokens and {len(drafts)} drafts, not {end}"
            )
        params = state.sampling.params
        if params.prompt_logprobs is not None:
            given = state.token_ids[start + 1 : min(end + 1, state.num_prompt_tokens)]
            result.prompt_logprobs[request_id] = [_row(token_id) for token_id in given]
        sampled = self._verify(request_id, num_known, drafts) if end >= num_known else []
        result.sampled_token_ids[row] += sampled
        rows = result.logprobs[row]
        if rows is not None:
            rows += [_row(token_id) for token_id in sampled]
        state.num_computed_tokens = end
        if not sampled:
            return
        if self._check:
            state.prefixes = state.extend_prefixes(sampled)
        state.token_ids.extend(sampled)
        num_rejected = 1 + len(drafts) - len(sampled)
        state.num_computed_tokens -= num_rejected
        state.unreported_rejections[step.step_id] = num_rejected
        if self._next_draft is not None and self._num_draft_tokens:
            positions = range(len(state.token_ids), len(state.token_ids) + self._num_draft_tokens)
            result.draft_token_ids[request_id] = [self._next_draft(request_id, position) for position in positions]

    def _verify(self, request_id: str, position: int, drafts: Sequence[int]) -> list[int]:
        """The model's tokens from ``position`` on, as far as the drafts before each were right."""
        sampled = [self._next_token(request_id, position)]
        for draft in drafts:
            if draft != sampled[-1]:
                break
            sampled.append(self._next_token(request_id, position + len(sampled)))
        return sampled

    # ---- keys and values -------------------------------------------------------------------------------------------

    def _write_and_read(self, step: SchedulerOutput, in_flight: _StepInFlight) -> None:
        """As in every layer: all requests' keys and values are written first, then read."""
        reads = []
        for state in in_flight.states:
            prefixes = state.extend_prefixes(step.draft_token_ids.get(state.request_id, ()))
            end = state.num_computed_tokens + step.num_scheduled_tokens[state.request_id]
            for group_id in range(len(self._groups)):
                self._write(step, in_flight, state, group_id, prefixes[:end])
            reads.append((state, prefixes[:end]))
        for state, prefixes in reads:
            for group_id in range(len(self._groups)):
                self._read(step, state, group_id, prefixes)

    def _write(
        self, step: SchedulerOutput, in_flight: _StepInFlight, state: _RequestState, group_id: int, prefixes: list[int]
    ) -> None:
        block_size = self._groups[group_id].block_size
        for position in range(state.num_computed_tokens, len(prefixes)):
            block_id = self._block_at(step, state, group_id, position)
            writer = in_flight.writers.setdefault(block_id, state.request_id)
            if writer != state.request_id:
                raise InconsistentStep(
                    f"step {step.step_id}: {writer!r} and {state.request_id!r} write block {block_id}"
                )
            for earlier in self._in_flight:
                former = earlier.writers.get(block_id, state.request_id)
                if former != state.request_id and former not in self._states:
                    raise InconsistentStep(
                        f"step {step.step_id}: block {block_id} of {former!r}, which has ended but is in flight, "
                        f"was given to {state.request_id!r}"
                    )
            self._slots[group_id][block_id * block_size + position % block_size] = prefixes[position]

    def _read(self, step: SchedulerOutput, state: _RequestState, group_id: int, prefixes: list[int]) -> None:
        spec = self._groups[group_id]
        for position in range(_first_position_read(spec, state.num_computed_tokens), len(prefixes)):
            block_id = self._block_at(step, state, group_id, position)
            if self._slots[group_id][block_id * spec.block_size + position % spec.block_size] != prefixes[position]:
                raise InconsistentStep(
                    f"step {step.step_id}: {state.request_id!r} reads position {position} in block {block_id} of "
                    f"group {group_id}, which holds something else"
                )

    def _copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, destination in pairs:
            for group, slots in zip(self._groups, self._slots, strict=True):
                size = group.block_size
                slots[destination * size : (destination + 1) * size] = slots[source * size : (source + 1) * size]

    def _block_at(self, step: SchedulerOutput, state: _RequestState, group_id: int, position: int) -> int:
        ids = state.block_ids[group_id]
        index = position // self._groups[group_id].block_size
        if index >= len(ids) or ids[index] == 0:
            raise InconsistentStep(
                f"step {step.step_id}: {state.request_id!r} has no block for position {position} in group {group_id}"
            )
        return ids[index]


def _first_position_read(spec: KVCacheSpec, position: int) -> int:
    """The first position that the token at ``position`` attends to."""
    if isinstance(spec, SlidingWindowSpec):
        return max(position - spec.sliding_window + 1, 0)
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return position // spec.chunk_size * spec.chunk_size
    return 0


def _row(token_id: int) -> LogprobsRow:
    """The made-up model is certain of every token."""
    return LogprobsRow(token_ids=[token_id], logprobs=[0.0], rank=1)
