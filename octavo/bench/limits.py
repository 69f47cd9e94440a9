"""How near a run came to what the machine can do: the work of each step over the ceilings of the same run.

    operations of a step = 2 P_layers T + 4 layers heads head_size sum(context) + 2 P_head R
    bytes of a step      = weights read + keys and values read
    limit of a step      = operations / peak of the multiply unit + bytes / read bandwidth

for T tokens, of which R go on to logits; a token's context is what it attends to, itself included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.bench.roofline import Ceilings
from octavo.util.spans import Span
from octavo.words.kv_cache_spec import DTYPE_BYTES
from octavo.words.model_facts import ModelFacts


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """What one model's steps cost. Parameters count multiplied ones; bytes are those that lie in memory."""

    layer_parameters: int
    head_parameters: int
    layer_bytes: int
    head_bytes: int
    attention_width: int  # heads times head size
    kv_bytes_per_token: int  # of one layer
    windows: tuple[int | None, ...]  # per layer: tokens a token attends to at most

    @classmethod
    def of(cls, facts: ModelFacts, kv_cache_dtype: str, weight_bytes: dict[str, int]) -> ModelCost:
        """``weight_bytes`` is what a worker says of itself."""
        kinds = facts.layer_types or ("full",) * facts.num_layers
        most = {"sliding_window": facts.sliding_window, "chunked_local": facts.chunk_size}
        return cls(
            layer_parameters=facts.num_layers * _parameters_of_a_layer(facts),
            head_parameters=facts.hidden_size * facts.vocab_size,
            layer_bytes=weight_bytes["layers"],
            head_bytes=weight_bytes["lm_head"],
            attention_width=facts.num_heads * facts.head_size,
            kv_bytes_per_token=2 * facts.num_kv_heads * facts.head_size * DTYPE_BYTES[kv_cache_dtype],
            windows=tuple(most.get(kind) for kind in kinds),
        )

    def operations(self, step: StepWork) -> int:
        """Multiplications and additions of projections, attention and head."""
        context = sum(_context(request, window) for window in self.windows for request in step.requests)
        projections = 2 * self.layer_parameters * step.num_tokens
        return projections + 4 * self.attention_width * context + 2 * self.head_parameters * step.logit_rows

    def bytes_read(self, step: StepWork) -> int:
        """Weights, once, and each request's keys and values, once."""
        keys = sum(_keys(request, window) for window in self.windows for request in step.requests)
        head = self.head_bytes if step.logit_rows else 0
        return self.layer_bytes + head + keys * self.kv_bytes_per_token


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """A step that ran. ``requests`` are pairs: tokens computed before the step, tokens computed in it."""

    requests: tuple[tuple[int, int], ...]
    logit_rows: int
    seconds: float

    @property
    def num_tokens(self) -> int:
        return sum(new for _, new in self.requests)

    @property
    def is_decode(self) -> bool:
        """Whether every request gets its next token, and nothing else is computed."""
        return self.logit_rows == self.num_tokens == len(self.requests) > 0


def steps_of(spans: Iterable[Span], end_ns: int) -> list[StepWork]:
    """The steps of a profile that ended at ``end_ns``: each lasts until the next one is scheduled.

    A burst is so many steps, with an equal share of its time. Those without tokens are not told: their time is that of
    the step before.
    """
    ordered = sorted(spans, key=lambda span: span.start_ns)
    sampled = {span.facts["step"]: span.facts for span in ordered if span.name == "sample"}
    scheduled = [span for span in ordered if span.name == "schedule" and span.facts["requests"]]
    ends = [span.start_ns for span in scheduled[1:]] + [end_ns]
    steps: list[StepWork] = []
    for span, end in zip(scheduled, ends, strict=True):
        steps += _runs_of(span.facts["requests"], sampled.get(span.facts["step"], {}), (end - span.start_ns) / 1e9)
    return steps


def _runs_of(requests: Sequence[tuple[int, int]], done: dict[str, Any], seconds: float) -> Iterator[StepWork]:
    num_steps = done.get("num_steps", 1)
    for number in range(num_steps):
        yield StepWork(
            requests=tuple((before + number, new) for before, new in requests),
            logit_rows=done.get("logit_rows", 0),
            seconds=seconds / num_steps,
        )


@dataclass(frozen=True, kw_only=True)
class Run:
    """Timed steps, the seconds from first to last, and those of them that kernels took (None: not known)."""

    steps: Sequence[StepWork]
    elapsed_s: float
    kernel_s: float | None


def shares(run: Run, cost: ModelCost, ceilings: Ceilings, dtype: str) -> dict[str, Any]:
    """The figures of a run beside its ceilings; ``mbu`` is of decode steps only, None where there were none.

    ``unit`` names the multiply unit that ``mfu`` and ``limit_s`` are held against.
    """
    unit, peak = ceilings.unit(dtype)
    bandwidth = ceilings.read_gbps * 1e9
    operations = sum(cost.operations(step) for step in run.steps)
    limit_s = operations / peak + sum(cost.bytes_read(step) for step in run.steps) / bandwidth
    decodes = [step for step in run.steps if step.is_decode]
    decode_s = sum(step.seconds for step in decodes)
    return {
        "ceilings": {name: getattr(ceilings, name) for name in ceilings.__dataclass_fields__},
        "unit": unit,
        "limit_s": limit_s,
        "limit_share": limit_s / run.elapsed_s,
        "mbu": sum(cost.bytes_read(step) for step in decodes) / (decode_s * bandwidth) if decodes else None,
        "mfu": operations / (run.elapsed_s * peak),
        "step_overhead_ms": _overhead_ms(run),
    }


def _overhead_ms(run: Run) -> float | None:
    """Mean time of a step outside kernels."""
    if run.kernel_s is None or not run.steps:
        return None
    return 1e3 * (run.elapsed_s - run.kernel_s) / len(run.steps)


def _parameters_of_a_layer(facts: ModelFacts) -> int:
    heads = facts.num_heads + 2 * facts.num_kv_heads
    attention = facts.hidden_size * facts.head_size * (heads + facts.num_heads)
    return attention + 3 * facts.hidden_size * facts.intermediate_size


def _context(request: tuple[int, int], window: int | None) -> int:
    """Sum over a request's new tokens of how many tokens each attends to."""
    before, new = request
    if window is None:
        return new * before + new * (new + 1) // 2
    growing = min(max(window - before, 0), new)  # tokens that still see everything before them
    return growing * before + growing * (growing + 1) // 2 + (new - growing) * window


def _keys(request: tuple[int, int], window: int | None) -> int:
    """Tokens whose keys a request's new tokens need at all."""
    before, new = request
    return before + new if window is None else min(before + new, window - 1 + new)
