from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo.device.sample.logits_processors import SamplingBatch
from octavo.device.sample.penalties import Penalties
from octavo.words.messages import NewRequestData, ResolvedSampling
from octavo.words.sampling_params import SamplingParams

PROMPT = [1, 2, 2]
LOGITS = [1.0, 2.0, -3.0, 4.0, -5.0, 6.0]


def request(output: list[int], **options: Any) -> NewRequestData:
    sampling = ResolvedSampling(params=SamplingParams(**options), seed=0, max_tokens=16, num_text_tokens=6)
    return NewRequestData(
        request_id="r",
        prompt_token_ids=PROMPT,
        output_token_ids=output,
        sampling=sampling,
        block_ids=(),
        num_computed_tokens=0,
    )


def batch_of(output: list[int]) -> SamplingBatch:
    tokens = PROMPT + output
    return SamplingBatch([0], np.array([len(tokens)]), np.array([tokens], dtype=np.int32))


def penalised(output: list[int], **options: Any) -> list[float]:
    penalties = Penalties(len(LOGITS))
    penalties.add(0, request(output, **options))
    logits = torch.tensor([LOGITS])
    penalties.apply(logits, batch_of(output))
    return logits[0].tolist()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"repetition_penalty": 2.0}, [1.0, 1.0, -6.0, 2.0, -10.0, 6.0]),
        ({"presence_penalty": 0.5}, [1.0, 2.0, -3.0, 3.5, -5.5, 6.0]),
        ({"frequency_penalty": 0.5}, [1.0, 2.0, -3.0, 3.0, -5.5, 6.0]),
        ({"frequency_penalty": 0.5, "presence_penalty": -1.0}, [1.0, 2.0, -3.0, 4.0, -4.5, 6.0]),
        ({"repetition_penalty": 2.0, "presence_penalty": 0.5}, [1.0, 1.0, -6.0, 1.5, -10.5, 6.0]),
    ],
)
def test_each_penalty_has_its_exact_value(options: dict[str, float], expected: list[float]) -> None:
    assert penalised([3, 3, 4], **options) == expected


def test_without_output_only_repetition_counts() -> None:
    assert penalised([], presence_penalty=1.0, frequency_penalty=1.0) == LOGITS
    assert penalised([], repetition_penalty=2.0) == [1.0, 1.0, -6.0, 4.0, -5.0, 6.0]


def test_counting_step_by_step_equals_counting_at_once() -> None:
    options = {"repetition_penalty": 1.5, "frequency_penalty": 0.25}
    penalties = Penalties(len(LOGITS))
    penalties.add(0, request([], **options))
    output: list[int] = []
    for token in [3, 1, 3]:
        output.append(token)
        logits = torch.tensor([LOGITS])
        penalties.apply(logits, batch_of(output))
        assert logits[0].tolist() == penalised(output, **options)


def test_rows_without_penalties_are_left_alone() -> None:
    penalties = Penalties(len(LOGITS))
    penalties.add(0, request([3]))
    assert penalties.apply(torch.tensor([LOGITS]), batch_of([3])) is False
