"""A request of the engine's own: whoever cannot compute it is broken."""

from __future__ import annotations

from octavo.control.request import Request
from octavo.control.scheduler.quarantine import WITNESS
from octavo.words.messages import EngineCoreRequest, ResolvedSampling
from octavo.words.pooling_params import PoolingParams
from octavo.words.sampling_params import SamplingParams

NO_CLIENT = -1
"""The client index of what nobody asked for."""


def make_witness(pooling: PoolingParams | None) -> Request:
    """One token that is followed by one, or where the model gives numbers one token with these.

    It is no part of what is counted of requests: it comes as one that had started before.
    """
    sampling = ResolvedSampling(
        params=SamplingParams(temperature=0.0, max_tokens=1), seed=0, max_tokens=1, num_text_tokens=1, pooling=pooling
    )
    return Request(
        EngineCoreRequest(
            request_id=WITNESS,
            prompt_token_ids=[0],
            sampling=sampling,
            arrival_time=0.0,
            client_index=NO_CLIENT,
            num_cached_tokens=0,
            first_scheduled_time=0.0,
        )
    )
