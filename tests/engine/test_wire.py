from __future__ import annotations

import contextlib
import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config.engine_config import EngineConfig
from octavo.config.flat import config_from_kwargs
from octavo.engine import wire
from octavo.words.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    LogprobsRow,
    ResolvedSampling,
    SchedulerStats,
)
from octavo.words.sampling_params import RequestOutputKind, SamplingParams


def test_a_config_arrives_as_it_was_sent() -> None:
    config = config_from_kwargs(model="m", max_model_len="auto", max_num_seqs=3, watermark=0.25, plugins="a,b")
    message = wire.decode_to_core(wire.encode(wire.Init(config, 7)))
    assert isinstance(message, wire.Init)
    assert (message.config, message.incarnation) == (config, 7)
    assert message.config != EngineConfig()


def test_a_request_arrives_as_it_was_sent() -> None:
    params = SamplingParams(
        temperature=0.5, logit_bias={3: -1.5}, stop=["a", "b"], logprobs=2, output_kind=RequestOutputKind.DELTA
    )
    request = EngineCoreRequest(
        request_id="r",
        prompt_token_ids=[1, 2, 3],
        sampling=ResolvedSampling(
            params=params,
            seed=2**63 - 1,
            max_tokens=4,
            num_text_tokens=259,
            eos_token_ids=(257,),
            bad_words_token_ids=((1, 2), (3,)),
        ),
        arrival_time=1.5,
        priority=-2,
        cache_salt="salt",
        output_token_ids=[9],
    )
    assert wire.decode_to_core(wire.encode(wire.AddRequest(request))) == wire.AddRequest(request)


def test_outputs_arrive_as_they_were_sent() -> None:
    output = EngineCoreOutput(
        request_id="r",
        new_token_ids=[5],
        new_logprobs=[LogprobsRow([5, 6], [-0.5, -1.0], 1)],
        finish_reason=FinishReason.LENGTH,
        error=None,
    )
    message = wire.Outputs(2, EngineCoreOutputs(outputs=[output], stats=SchedulerStats(num_running=1), incarnation=2))
    assert wire.decode_from_core(wire.encode(message)) == message


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_an_error_and_nothing_else(data: bytes) -> None:
    for decode in (wire.decode_hello, wire.decode_to_core, wire.decode_from_core):
        with contextlib.suppress(wire.WireError):
            decode(data)


class _Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch exploded",)


@pytest.mark.parametrize(
    "data", [pickle.dumps(_Bomb()), b"", b"\x91" * 100_000, b"\xdf\xff\xff\xff\xff", os.urandom(65536)]
)
def test_hostile_bytes_are_an_error(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.decode_to_core(data)
    with pytest.raises(wire.WireError):
        wire.decode_from_core(data)


@pytest.mark.parametrize("value", [object(), 2**64, -(2**63) - 1])
def test_what_msgpack_cannot_carry_is_refused_by_the_sender(value: object) -> None:
    with pytest.raises(TypeError):
        wire.encode(wire.Call(0, "collective_rpc", [value]))
