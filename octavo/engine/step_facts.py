"""What a profile tells of a step, beside its times."""

from __future__ import annotations

from typing import Any

from octavo.words.messages import ModelRunnerOutput, SchedulerOutput


def step_facts(planned: SchedulerOutput) -> dict[str, Any]:
    """What a step has to do: its number, and per request [tokens computed before it, tokens it computes]."""
    computed = {new.request_id: new.num_computed_tokens for new in planned.new_requests}
    computed |= {known.request_id: known.num_computed_tokens for known in planned.cached_requests}
    requests = [[computed[request_id], number] for request_id, number in planned.num_scheduled_tokens.items()]
    return {"step": planned.step_id, "requests": requests}


def sampling_facts(planned: SchedulerOutput, done: ModelRunnerOutput) -> dict[str, Any]:
    """What a step turned out to be: its number, its runs of the model, and the rows each of them gave logits for."""
    return {
        "step": done.step_id,
        "logit_rows": _num_logit_rows(planned, done),
        "num_steps": done.num_decode_steps,
    }


def _num_logit_rows(planned: SchedulerOutput, done: ModelRunnerOutput) -> int:
    """Rows a step computed logits for: one per sampled request, and one per draft it verified."""
    drafts = planned.draft_token_ids
    rows = zip(done.request_ids, done.sampled_token_ids, strict=True)
    return sum(1 + len(drafts.get(request_id, ())) for request_id, sampled in rows if sampled)
