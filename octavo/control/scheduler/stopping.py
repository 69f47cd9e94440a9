"""When a token is a request's last one."""

from __future__ import annotations

from octavo.control.request import Request, RequestStatus
from octavo.words.messages import EngineCoreOutput


def check_stop(request: Request, is_complete: bool = False) -> RequestStatus | None:
    """Return how the request's newest token ends it, or None; a stop id is noted as its ``stop_reason``.

    In this order: end of sequence, stop id, a constraint that is complete, length (of the context or of max_tokens),
    repetition once min_tokens are there.
    The sampler never picks the first two among the first min_tokens tokens; should one be there all the same, it does
    not count. ``is_complete``: the request's constraint lets nothing follow, whatever min_tokens says.
    """
    token_id = request.all_token_ids[-1]
    if token_id in request.end_token_ids and request.num_output_tokens > request.sampling.params.min_tokens:
        if token_id not in request.eos_token_ids:
            request.stop_reason = token_id
        return RequestStatus.FINISHED_STOPPED
    if is_complete:
        return RequestStatus.FINISHED_STOPPED
    if request.num_tokens >= request.max_total_tokens:
        return RequestStatus.FINISHED_LENGTH
    return _repetition(request) if request.sampling.params.repetition_detection is not None else None


def _repetition(request: Request) -> RequestStatus | None:
    params, num_output = request.sampling.params, request.num_output_tokens
    detection = params.repetition_detection
    if detection is None or num_output < params.min_tokens or not detection.is_met(request.all_token_ids, num_output):
        return None
    request.stop_reason = "repetition"
    return RequestStatus.FINISHED_REPETITION


def tokenless_end(request: Request, choice_id: str | None = None, pooled: bytes | None = None) -> EngineCoreOutput:
    """The last output of a request, or of one of its answers, that ends without a new token."""
    return EngineCoreOutput(
        request_id=choice_id or request.request_id,
        new_token_ids=[],
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        num_cached_tokens=max(request.num_cached_tokens, 0),
        num_preemptions=request.num_preemptions,
        first_scheduled_time=request.first_scheduled_time,
        error=request.error,
        is_refused=request.is_refused,
        pooled=pooled,
    )
