"""Random traffic through scheduler, cache and simulated executor, with everything checked after every move."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from octavo.control.kv.manager import KVCacheManager
from octavo.control.request import Request
from octavo.words.kv_cache_spec import AnyKVCacheSpec
from octavo.words.messages import SchedulerOutput
from tests.fakes import EOS, NUM_DRAFT_TOKENS, ControlPlane, full_attention, sliding_window

BLOCK_SIZE = 4
WINDOW = 6
MAX_MODEL_LEN = 48


def babble(request_id: str, position: int) -> int:
    """Mostly different tokens, an end of sequence now and then."""
    number = zlib.crc32(f"{request_id}:{position}".encode())
    return EOS if number % 23 == 0 else 100 + number % 1_000


def guess(request_id: str, position: int) -> int:
    """Two of three guesses are right."""
    return babble(request_id, position) + (position % 3 == 0)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One way to set up the control plane."""

    steps_in_flight: int = 1
    with_window: bool = False
    policy: str = "fcfs"
    with_drafts: bool = False
    num_usable_blocks: int = 14
    budget: int = 16
    max_num_seqs: int = 4
    long_prefill_token_threshold: int = 0
    chunked: bool = True
    watermark: float = 0.0
    steps_at_once: int = 0

    @property
    def specs(self) -> dict[str, AnyKVCacheSpec]:
        specs: dict[str, AnyKVCacheSpec] = {"full": full_attention(BLOCK_SIZE)}
        if self.with_window:
            specs["window"] = sliding_window(WINDOW, BLOCK_SIZE)
        return specs


@dataclass
class Seen:
    """What has happened; a run in which one of these stays 0 has shown nothing about it."""

    steps: int = 0
    preemptions: int = 0
    hit_tokens: int = 0
    aborts: int = 0
    window_blocks_given_back: int = 0
    drafts: int = 0
    accepted_drafts: int = 0
    burst_steps: int = 0
    finished: int = 0
    failed: int = 0

    def __iadd__(self, other: Seen) -> Seen:
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)
        return self


class Traffic:
    """Moves (add, schedule, update, abort, fail, reset) that may come in any order, and checks after each."""

    def __init__(
        self, setting: Setting, *, manager: Callable[..., KVCacheManager] = KVCacheManager, **options: Any
    ) -> None:
        self.setting = setting
        self.plane = ControlPlane(
            num_blocks=setting.num_usable_blocks + 1,
            specs=setting.specs,
            next_token=babble,
            next_draft=guess if setting.with_drafts else None,
            manager=manager,
            max_num_seqs=setting.max_num_seqs,
            max_num_batched_tokens=setting.budget,
            max_model_len=MAX_MODEL_LEN,
            max_steps_in_flight=setting.steps_in_flight,
            policy=setting.policy,
            enable_chunked_prefill=setting.chunked,
            long_prefill_token_threshold=setting.long_prefill_token_threshold,
            num_lookahead_tokens=NUM_DRAFT_TOKENS if setting.with_drafts else 0,
            watermark=setting.watermark,
            max_burst_seconds=(setting.steps_at_once + 0.5) * 1e-3 if setting.steps_at_once else 0.0,
            **options,
        )
        self.plane.step_seconds = 1e-3 if setting.steps_at_once else 0.0
        self.seen = Seen()
        self.arrivals: list[Request] = []
        self.window_blocks: dict[str, int] = {}

    # ---- moves ----------------------------------------------------------------------------------------------------

    def add(self, *, family: int, num_prompt: int, max_tokens: int, priority: int = 0, logprobs: bool = False) -> None:
        """Requests of a family share the start of their prompts; the last token is their own."""
        number = len(self.arrivals)
        prompt = [10_000 * (1 + family) + position for position in range(num_prompt - 1)] + [50_000 + number]
        request = self.plane.add(
            f"r{number}",
            prompt,
            max_tokens=max_tokens,
            priority=priority,
            arrival_time=float(number),
            prompt_logprobs=0 if logprobs else None,
        )
        self.arrivals.append(request)

    def schedule(self) -> None:
        """Decide and start a step; must not be called with the queue of steps full."""
        was_waiting = {request.request_id for request in self.plane.scheduler.waiting}
        could_run = bool(self.plane.scheduler.requests) and not self.plane.in_flight
        step = self.plane.schedule()
        self.seen.steps += 1
        self._check_step(step)
        if could_run:
            assert step.total_num_scheduled_tokens or not self.plane.scheduler.requests, "nobody runs: stuck"
        if self.setting.policy == "fcfs":
            self._check_nobody_was_overtaken(was_waiting, step)
        self._check_blocks()

    def update(self) -> None:
        """Take the oldest result."""
        self.plane.update()
        self._check_blocks()

    def abort(self, index: int) -> None:
        """Abort any request ever added: waiting, running, in flight or long gone."""
        request = self.arrivals[index % len(self.arrivals)]
        was_over = request.is_finished
        aborted = self.plane.scheduler.abort_requests([request.request_id, "never heard of"])
        assert aborted == ([] if was_over else [request])
        self.seen.aborts += len(aborted)
        self._check_blocks()

    def fail(self, index: int) -> None:
        """Break the logits of a running request in the next result that has it."""
        running = self.plane.scheduler.running
        if running:
            self.plane.failures[running[index % len(running)].request_id] = "logits are not finite"

    def reset_cache(self) -> None:
        """Allowed exactly when nobody holds blocks."""
        is_idle = self.plane.kv_cache.usage == 0.0
        assert self.plane.scheduler.reset_prefix_cache() == is_idle

    def advance(self) -> None:
        """Schedule if the queue of steps has room, otherwise update."""
        if len(self.plane.in_flight) < self.setting.steps_in_flight:
            self.schedule()
        else:
            self.update()

    def finish(self) -> None:
        """Serve what is left and check that nothing is held, and that everybody got what was asked."""
        first = self.seen.steps
        # Alone, a request takes at most one step per token; preempted ones are computed again.
        bound = 20 + 4 * MAX_MODEL_LEN * (1 + len(self.plane.scheduler.requests))
        while self.plane.scheduler.has_requests() or self.plane.in_flight:
            if self.plane.scheduler.has_requests():
                self.advance()
            else:
                self.update()
            assert self.seen.steps - first <= bound, f"starved: {self.plane.scheduler.requests}"
        self._check_blocks()
        assert self.plane.kv_cache.usage == 0.0
        assert self.plane.scheduler.reset_prefix_cache()
        self._check_answers()
        self._count()

    # ---- checks ---------------------------------------------------------------------------------------------------

    def _check_step(self, step: SchedulerOutput) -> None:
        scheduler = self.plane.scheduler
        assert step.total_num_scheduled_tokens <= self.setting.budget
        assert all(num_tokens > 0 for num_tokens in step.num_scheduled_tokens.values())
        assert len(scheduler.running) <= self.setting.max_num_seqs
        assert not set(step.preempted_request_ids) & set(step.num_scheduled_tokens)
        assert {data.request_id for data in step.new_requests} <= {request.request_id for request in scheduler.running}
        for request in scheduler.running:
            assert request.num_computed_tokens < scheduler.max_request_len
            assert request.num_computed_tokens <= request.num_tokens - 1 + request.num_output_placeholders
        if self.setting.policy == "priority":
            claims = [(request.priority, request.arrival_time) for request in scheduler.running]
            assert claims == sorted(claims)

    def _check_nobody_was_overtaken(self, was_waiting: set[str], step: SchedulerOutput) -> None:
        admitted = {data.request_id for data in step.new_requests}
        still_waiting = [number for number in self._numbers(was_waiting - admitted) if not self.arrivals[number].error]
        assert max(self._numbers(admitted), default=-1) < min(still_waiting, default=len(self.arrivals)), "overtaken"

    def _numbers(self, request_ids: set[str]) -> list[int]:
        return [int(request_id[1:]) for request_id in request_ids]

    def _check_blocks(self) -> None:
        """Every block is free or held; without steps in flight only running requests hold any."""
        kv_cache, scheduler = self.plane.kv_cache, self.plane.scheduler
        held: set[int] = set()
        for request in scheduler.running:
            tables = kv_cache.block_ids(request.request_id)
            held.update(*tables)
            if self.setting.with_window:
                given_back = sum(block_id == 0 for table in tables for block_id in table)
                known = self.window_blocks.get(request.request_id, 0)
                self.window_blocks[request.request_id] = max(known, given_back)
        held.discard(0)
        num_usable = self.setting.num_usable_blocks
        assert len(held) <= num_usable - kv_cache.num_free_blocks, "a block is held and free"
        if not self.plane.in_flight:
            assert len(held) == num_usable - kv_cache.num_free_blocks, "leak: a block is neither held nor free"

    def _check_answers(self) -> None:
        for request in self.arrivals:
            outputs = self.plane.outputs.get(request.request_id, [])
            token_ids = self.plane.token_ids(request.request_id)
            first = request.num_prompt_tokens
            assert token_ids == [babble(request.request_id, first + i) for i in range(len(token_ids))]
            assert EOS not in token_ids[:-1]
            assert sum(output.finish_reason is not None for output in outputs) == (request.finish_reason != 2)
            rows = [output.prompt_logprobs for output in outputs if output.prompt_logprobs is not None]
            if request.wants_prompt_logprobs and token_ids and first > 1:
                assert [len(row) for row in rows] == [first - 1]

    def _count(self) -> None:
        stats = self.plane.scheduler.stats()
        steps = self.plane.steps
        self.seen.preemptions += stats.num_preemptions
        self.seen.hit_tokens += stats.prefix_cache_hits
        self.seen.window_blocks_given_back += sum(self.window_blocks.values())
        self.seen.drafts += sum(len(drafts) for step in steps for drafts in step.draft_token_ids.values())
        outputs = [output for outputs in self.plane.outputs.values() for output in outputs]
        self.seen.accepted_drafts += sum(output.num_accepted_tokens for output in outputs)
        self.seen.burst_steps += stats.num_burst_steps
        self.seen.finished += sum(output.finish_reason in (0, 1) for output in outputs)
        self.seen.failed += sum(output.error == "logits are not finite" for output in outputs)


def random_run(traffic: Traffic, rng: random.Random, num_moves: int) -> Seen:
    """Drive traffic with random moves and bring it to its end."""
    for _ in range(num_moves):
        move = rng.random()
        if move < 0.22:
            traffic.add(
                family=rng.randrange(3),
                num_prompt=rng.choice((1, 3, 5, 8, 13, 17, 21, 30, 41)),
                max_tokens=rng.choice((1, 2, 6, 12, 30)),
                priority=rng.randrange(3),
                logprobs=rng.random() < 0.1,
            )
        elif move < 0.25 and traffic.arrivals:
            traffic.abort(rng.randrange(len(traffic.arrivals)) if rng.random() < 0.5 else -1 - rng.randrange(4))
        elif move < 0.26:
            traffic.fail(rng.randrange(8))
        elif move < 0.27:
            traffic.reset_cache()
        else:
            traffic.advance()
    traffic.finish()
    return traffic.seen
