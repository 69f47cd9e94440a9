"""Small stand-ins shared by tests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from octavo.control.kv.block_hash import make_block_hasher
from octavo.control.kv.manager import KVCacheManager
from octavo.control.kv.planning import KVCacheLimits, RankNeeds, plan_kv_cache
from octavo.control.request import Request
from octavo.control.scheduler.gates import Gate
from octavo.control.scheduler.limits import SchedulerLimits
from octavo.control.scheduler.scheduler import Scheduler
from octavo.executor.simulated import SimulatedExecutor, TokenFunction
from octavo.words.kv_cache_spec import AnyKVCacheSpec, FullAttentionSpec, KVCacheConfig, SlidingWindowSpec
from octavo.words.messages import (
    EngineCoreOutput,
    EngineCoreRequest,
    ModelRunnerOutput,
    ResolvedSampling,
    SchedulerOutput,
)
from octavo.words.sampling_params import SamplingParams

EOS = 7
NUM_DRAFT_TOKENS = 3


def full_attention(block_size: int = 16) -> FullAttentionSpec:
    """A layer that keeps everything; 1 byte x 2 per token and head."""
    return FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype="int8")


def sliding_window(window: int, block_size: int = 16) -> SlidingWindowSpec:
    """A layer with a window of that many tokens."""
    return SlidingWindowSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype="int8", sliding_window=window)


def make_message(
    request_id: str = "r",
    prompt: Sequence[int] | int = 4,
    *,
    max_tokens: int = 16,
    priority: int = 0,
    arrival_time: float = 0.0,
    output_token_ids: Sequence[int] = (),
    cache_salt: str | None = None,
    **params: Any,
) -> EngineCoreRequest:
    """A request as the core gets it. A number as ``prompt`` means that many tokens like no other request's."""
    if isinstance(prompt, int):
        first = 1_000 * (1 + sum(request_id.encode()))
        prompt = range(first, first + prompt)
    ignore_eos = params.get("ignore_eos", False)
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        sampling=ResolvedSampling(
            params=SamplingParams(max_tokens=max_tokens, **params),
            seed=0,
            max_tokens=max_tokens,
            num_text_tokens=1 << 20,
            eos_token_ids=() if ignore_eos else (EOS,),
        ),
        arrival_time=arrival_time,
        priority=priority,
        cache_salt=cache_salt,
        output_token_ids=list(output_token_ids),
    )


def counting_token(request_id: str, position: int) -> int:
    """A model that never stops by itself: the token at a position is 100 + the position."""
    return 100 + position


class FakeGate:
    """Holds back the requests whose ids are in ``held``."""

    def __init__(self, *held: str) -> None:
        self.held = set(held)

    def holds(self, request: Request) -> bool:
        return request.request_id in self.held


class FakeClock:
    """Stands still until somebody moves ``now``."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class ControlPlane:
    """A scheduler and a simulated executor, driven as the engine core drives them, with everything recorded.

    Up to ``max_steps_in_flight`` steps are scheduled before the oldest one's result is taken.
    """

    step_seconds = 0.0
    """What the scheduler is told that a run of the model took; 0: nothing is measured."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        specs: dict[str, AnyKVCacheSpec] | None = None,
        next_token: TokenFunction = counting_token,
        next_draft: TokenFunction | None = None,
        enable_caching: bool = True,
        gates: Sequence[Gate] = (),
        manager: Callable[..., KVCacheManager] = KVCacheManager,
        check: bool = True,
        **limits: Any,
    ) -> None:
        defaults: dict[str, Any] = {"max_num_seqs": 16, "max_num_batched_tokens": 64, "max_model_len": 128}
        self.limits = SchedulerLimits(**(defaults | limits))
        self.config = plan_for(specs or {"layer": full_attention()}, num_blocks=num_blocks, limits=self.limits)
        self.kv_cache = manager(
            self.config, enable_caching=enable_caching, max_num_batched_tokens=most_tokens_in_flight(self.limits)
        )
        self.scheduler = Scheduler(self.limits, self.kv_cache, gates)
        self.executor = SimulatedExecutor(
            specs or {"layer": full_attention()},
            next_token=next_token,
            next_draft=next_draft,
            num_draft_tokens=NUM_DRAFT_TOKENS,
            max_steps_in_flight=self.limits.max_steps_in_flight,
            check=check,
        )
        self.executor.initialize_from_config(self.config)
        self.hasher = make_block_hasher(self.config.hash_block_size)
        self.in_flight: deque[tuple[SchedulerOutput, Any]] = deque()
        self.steps: list[SchedulerOutput] = []
        self.outputs: dict[str, list[EngineCoreOutput]] = {}
        self.failures: dict[str, str] = {}
        """Requests whose next result is that their logits are broken, and why."""

    def add(self, *args: Any, **kwargs: Any) -> Request:
        """Add a request made from ``make_message``'s arguments."""
        request = Request(make_message(*args, **kwargs), self.hasher)
        self.scheduler.add_request(request)
        return request

    def schedule(self) -> SchedulerOutput:
        """Schedule and execute one step; its result stays in flight."""
        step = self.scheduler.schedule()
        self.steps.append(step)
        self.in_flight.append((step, self.executor.execute(step)))
        return step

    def update(self) -> list[EngineCoreOutput]:
        """Take the result of the oldest step in flight."""
        step, handle = self.in_flight.popleft()
        result = self._break_logits(self.executor.sample(handle))
        seconds = self.step_seconds * result.num_decode_steps if self.step_seconds else None
        by_client = self.scheduler.update_from_output(step, result, seconds=seconds)
        outputs = [output for client_outputs in by_client.values() for output in client_outputs]
        for output in outputs:
            self.outputs.setdefault(output.request_id, []).append(output)
        return outputs

    def step(self) -> SchedulerOutput:
        """Fill the queue of steps, then take one result; returns the step scheduled last."""
        while len(self.in_flight) < self.limits.max_steps_in_flight:
            self.schedule()
        self.update()
        return self.steps[-1]

    def run(self, max_steps: int = 1_000) -> int:
        """Step until nothing is left to do; returns the number of steps. Fails if that takes too long."""
        first = len(self.steps)
        while self.scheduler.has_requests() or self.in_flight:
            if self.scheduler.has_requests():
                self.step()
            else:
                self.update()
            assert len(self.steps) - first <= max_steps, f"not done after {max_steps} steps: {self.scheduler.requests}"
        return len(self.steps) - first

    def token_ids(self, request_id: str) -> list[int]:
        """Everything a client was told about a request's tokens."""
        return [token_id for output in self.outputs.get(request_id, ()) for token_id in output.new_token_ids]

    def last_output(self, request_id: str) -> EngineCoreOutput:
        """What a client was told last; holds the finish reason."""
        return self.outputs[request_id][-1]

    def _break_logits(self, result: ModelRunnerOutput) -> ModelRunnerOutput:
        for request_id in result.request_ids:
            if request_id in self.failures:
                result.failed[request_id] = self.failures.pop(request_id)
        return result


def most_tokens_in_flight(limits: SchedulerLimits) -> int:
    """Most tokens of one request beyond those that are surely computed."""
    lookahead = limits.num_lookahead_tokens
    return limits.max_num_batched_tokens + lookahead + (1 + lookahead) * (limits.max_steps_in_flight - 1)


def plan_for(specs: dict[str, AnyKVCacheSpec], *, num_blocks: int, limits: SchedulerLimits) -> KVCacheConfig:
    """A cache of exactly that many blocks, the null block included; the length may be more than fits."""
    cache_limits = KVCacheLimits(
        max_model_len=limits.max_model_len,
        model_max_len=limits.max_model_len,
        max_num_batched_tokens=most_tokens_in_flight(limits),
        num_blocks_override=num_blocks,
    )
    return plan_kv_cache(RankNeeds(specs=specs, available_bytes=1 << 40), cache_limits)


def scheduled(step: SchedulerOutput) -> dict[str, int]:
    """Tokens per request of a step."""
    return dict(step.num_scheduled_tokens)


def ids(requests: Iterable[Request]) -> list[str]:
    """Request ids, in order."""
    return [request.request_id for request in requests]
