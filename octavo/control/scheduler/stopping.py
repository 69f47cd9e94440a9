"""When a token is a request's last one."""

from __future__ import annotations

from octavo.control.request import Request, RequestStatus


def check_stop(request: Request, is_complete: bool = False) -> RequestStatus | None:
    """Return how the request's newest token ends it, or None; a stop id is noted as its ``stop_reason``.

    In this order: end of sequence, stop id, a constraint that is complete, length (of the context or of max_tokens).
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
    return RequestStatus.FINISHED_LENGTH if request.num_tokens >= request.max_total_tokens else None
