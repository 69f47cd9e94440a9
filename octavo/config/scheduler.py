"""What runs in a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from octavo.config.fields import Option


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """What the user asked about scheduling."""

    max_num_batched_tokens: Annotated[
        int | None,
        Option("Most tokens in one step, over all requests (default on a CPU: 2048).", at_least=1),
    ] = None
    max_num_seqs: Annotated[
        int | None, Option("Most requests running at once (default on a CPU: 128).", at_least=1)
    ] = None
    enable_chunked_prefill: Annotated[bool, Option("Split long prompts over several steps.")] = True
    long_prefill_token_threshold: Annotated[
        int,
        Option("Most prompt tokens of one request per step while others run; 0 = no limit.", at_least=0),
    ] = 0
    max_step_ms: Annotated[
        float,
        Option(
            "Milliseconds that a step may take: a long prompt is cut, by the rates measured, so that streams beside it "
            "go on; 0 = no limit.",
            at_least=0,
        ),
    ] = 150.0
    max_burst_ms: Annotated[
        float,
        Option(
            "Milliseconds of decode steps that are run at once, with nothing decided between them, while somebody "
            "reads along; half of max_step_ms where nobody does; 0 = one step at a time.",
            at_least=0,
        ),
    ] = 25.0
    scheduling_policy: Annotated[
        str,
        Option(
            "fcfs = in order of arrival; priority = lower numbers first (a request's priority is refused otherwise).",
            choices=("fcfs", "priority"),
        ),
    ] = "fcfs"
    watermark: Annotated[
        float,
        Option(
            "Share of KV blocks kept free when a waiting request is admitted beside running ones.",
            at_least=0.0,
            at_most=0.9,
        ),
    ] = 0.0
    async_scheduling: Annotated[
        bool,
        Option("Plan the next step while one runs (two steps in flight); executors that cannot refuse it."),
    ] = False
    max_num_queued_reqs: Annotated[
        int | None,
        Option("Most requests of AsyncLLM that wait for their first token; more are refused.", at_least=1),
    ] = None
    max_num_queued_tokens: Annotated[
        int | None,
        Option("Most prompt tokens of requests that wait for their first token; more are refused.", at_least=1),
    ] = None
    request_timeout: Annotated[
        float | None,
        Option("Seconds after which AsyncLLM ends a request that is not done (default: never).", at_least=0.001),
    ] = None
