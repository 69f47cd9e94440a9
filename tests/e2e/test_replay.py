"""An answer cut after any number of tokens and taken up again is the one that was never cut, to the bit.

The second half runs on an engine that knows nothing of the first, as after the death of a core.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo.config.flat import config_from_kwargs
from octavo.engine.client import InprocClient
from octavo.words.messages import EngineCoreOutput, EngineCoreRequest, ResolvedSampling
from octavo.words.sampling_params import SamplingParams
from tests.tiny_models import VOCAB_SIZE, save_tiny_model

NUM_OUTPUT = 14
PROMPT = [3 + (7 * index) % 250 for index in range(37)]
EOS = 2

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "ignore_eos": True},
    "seeded": {"temperature": 1.2, "seed": 5, "top_p": 0.95, "top_k": 40, "ignore_eos": True},
    "penalties": {
        "temperature": 0.7,
        "seed": 6,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "ignore_eos": True,
    },
    "logprobs": {"temperature": 0.0, "logprobs": 3, "prompt_logprobs": 2, "ignore_eos": True},
    "min_tokens": {"temperature": 2.0, "seed": 7, "min_tokens": 9, "stop_token_ids": list(range(10, 200))},
    "n=2, second": {"temperature": 1.0, "seed": 8, "n": 2, "ignore_eos": True},
}


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), request.param)


@pytest.fixture(scope="module", params=[False, True], ids=["no prefix cache", "prefix cache"])
def clients(request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[InprocClient, InprocClient]]:
    """The engine of the first half and that of the second."""
    config = config_from_kwargs(
        model=str(folder), max_model_len=128, block_size=8, num_threads=1, enable_prefix_caching=request.param
    )
    pair = InprocClient(config), InprocClient(config)
    if not pair[0].info.plan.batch_invariant:
        pytest.skip("without native kernels another batch may round differently")
    yield pair
    for client in pair:
        client.shutdown()


def ask(kind: str) -> EngineCoreRequest:
    params = SamplingParams(max_tokens=NUM_OUTPUT, **KINDS[kind])
    return EngineCoreRequest(
        request_id=kind,
        prompt_token_ids=PROMPT,
        sampling=ResolvedSampling(
            params=params,
            seed=params.seed or 0,
            max_tokens=NUM_OUTPUT,
            num_text_tokens=VOCAB_SIZE,
            eos_token_ids=() if params.ignore_eos else (EOS,),
            choice_index=1 if params.n == 2 else 0,
        ),
        arrival_time=1.0,
    )


def answer(client: InprocClient, request: EngineCoreRequest) -> list[EngineCoreOutput]:
    """One output per token."""
    client.add_request(request)
    found: list[EngineCoreOutput] = []
    while not (found and found[-1].finish_reason is not None):
        outputs = client.get_output()
        assert outputs is not None and len(found) <= NUM_OUTPUT
        found.extend(outputs.outputs)
    return found


def said(outputs: list[EngineCoreOutput]) -> list[Any]:
    return [(output.new_token_ids, output.new_logprobs, output.finish_reason, output.stop_reason) for output in outputs]


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_gives_the_rest_of_the_same_answer(clients: tuple[InprocClient, InprocClient], kind: str) -> None:
    first, second = clients
    whole = answer(first, ask(kind))
    assert len(whole) >= (9 if kind == "min_tokens" else NUM_OUTPUT)
    for num_cut in range(1, len(whole)):
        token_ids = [token for output in whole[:num_cut] for token in output.new_token_ids]
        rest = answer(second, msgspec.structs.replace(ask(kind), output_token_ids=token_ids))
        assert said(rest) == said(whole[num_cut:]), f"cut after {num_cut} tokens"
        assert all(output.prompt_logprobs is None for output in rest), "they came with the first token"
