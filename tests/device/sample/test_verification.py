"""Rejection sampling leaves the model's distribution as it is, whatever was guessed; chi-square with fixed seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo.device.sample.logits_processors import SamplingBatch
from octavo.device.sample.sampler import Sampler
from octavo.device.sample.verification import ExactMatch, Proposals, RejectionSampling, guessed_rows
from octavo.device.spec_decode.sampler import IndependentSampler
from octavo.words.messages import NewRequestData, ResolvedSampling
from octavo.words.sampling_params import SamplingParams

NUM_REQUESTS = 6000
P = torch.tensor([1.3, 0.2, -0.5, 0.9, -2.0, 0.0])
Q = torch.tensor([0.1, 1.0, 0.3, -0.7, -0.2, 0.4])
AFTER = torch.tensor([-0.4, 0.0, 0.8, 0.1, 1.1, -1.5])
V = len(P)
# The 99.9 % points of chi-square with 5 and 3 degrees of freedom.
MOST = {6: 20.5, 4: 16.3}


def chi_square(tokens: np.ndarray, probabilities: Tensor) -> float:
    possible = probabilities > 0
    observed = np.bincount(tokens, minlength=V)
    assert not observed[~possible.numpy()].any()
    expected = (probabilities[possible] * len(tokens)).numpy()
    return float(((observed[possible.numpy()] - expected) ** 2 / expected).sum())


class Requests:
    """Many requests that are alike but for their seeds, each with one token known."""

    def __init__(self, **params: Any) -> None:
        self.proposals = Proposals()
        self.sampler = Sampler(NUM_REQUESTS, (), verification=RejectionSampling(self.proposals))
        self.slots = np.arange(NUM_REQUESTS)
        self.known = np.ones(NUM_REQUESTS, dtype=np.int64)
        self.token_ids = np.zeros((NUM_REQUESTS, 4), dtype=np.int32)
        for slot in self.slots.tolist():
            sampling = ResolvedSampling(
                params=SamplingParams(**{"temperature": 1.0, **params}), seed=slot, max_tokens=9, num_text_tokens=V
            )
            request = NewRequestData(
                request_id=str(slot),
                prompt_token_ids=[0],
                output_token_ids=[],
                sampling=sampling,
                block_ids=(),
                num_computed_tokens=0,
            )
            self.sampler.add(slot, request)

    def draft(self, logits: Tensor) -> np.ndarray:
        """Drafts drawn from these logits."""
        independent = IndependentSampler(self.sampler, self.proposals)
        rows = logits.repeat(NUM_REQUESTS, 1)
        return independent.choose(rows, self.slots, self.known, 0, self.token_ids)

    def verify(self, drafts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that stand in the place of these drafts, and those after them."""
        self.token_ids[:, 1] = drafts
        slots, numbers = self.slots.repeat(2), np.tile([0, 1], NUM_REQUESTS)
        batch = SamplingBatch(slots.tolist(), 1 + numbers, self.token_ids, num_drafts=numbers)
        logits = torch.stack((P, AFTER)).repeat(NUM_REQUESTS, 1)
        tokens = np.array(self.sampler.sample(logits, batch).token_ids)
        return tokens[0::2], tokens[1::2]


def filtered(logits: Tensor, temperature: float, top_k: int) -> Tensor:
    scaled = logits / temperature
    return scaled.masked_fill(scaled < scaled.topk(top_k).values[-1], -torch.inf).double().softmax(-1)


@pytest.mark.parametrize("params", [{}, {"temperature": 0.7, "top_k": 4}])
@pytest.mark.parametrize("drafter", ["a likely one", "an unlikely one", "a model", "the same model"])
def test_tokens_have_the_models_distribution_whatever_was_guessed(drafter: str, params: dict[str, Any]) -> None:
    requests = Requests(**params)
    p, q, after = (filtered(each, params.get("temperature", 1.0), params.get("top_k", V)) for each in (P, Q, AFTER))
    if drafter in ("a model", "the same model"):
        drafts = requests.draft(Q if drafter == "a model" else P)
        q = q if drafter == "a model" else p
    else:
        guess = 0 if drafter == "a likely one" else 5
        drafts = np.full(NUM_REQUESTS, guess)
        q = torch.nn.functional.one_hot(torch.tensor(guess), V).double()
    first, second = requests.verify(drafts)
    accepted = first == drafts
    assert chi_square(first, p) < MOST[int((p > 0).sum())]
    assert chi_square(second[accepted], after) < MOST[int((after > 0).sum())]
    assert accepted.mean() == pytest.approx(float(torch.minimum(p, q).sum()), abs=0.02)


def test_chi_square_tells_another_distribution() -> None:
    first, _ = Requests().verify(np.zeros(NUM_REQUESTS, dtype=np.int64))
    assert chi_square(first, Q.double().softmax(-1)) > MOST[6]


def test_greedy_requests_are_verified_by_exact_match() -> None:
    requests = Requests(temperature=0.0)
    first, second = requests.verify(np.tile([0, 1], NUM_REQUESTS // 2))
    assert set(first.tolist()) == {0} and set(second.tolist()) == {4}


def test_a_slot_that_is_forgotten_has_certain_drafts() -> None:
    proposals = Proposals()
    proposals.keep(3, 0, torch.full((V,), 1 / V))
    assert proposals.get(3, 0, 2, V)[2] == pytest.approx(1 / V)
    proposals.remove(3)
    assert proposals.get(3, 0, 2, V).tolist() == [0, 0, 1, 0, 0, 0]


def test_rows_before_another_one_of_their_request_are_guessed() -> None:
    table = np.zeros((4, 2), dtype=np.int32)
    batch = SamplingBatch([2, 2, 2, 0, 1, 1], np.ones(6, dtype=np.int64), table)
    assert guessed_rows(batch) == [0, 1, 4]
    assert not ExactMatch().needs_logits
