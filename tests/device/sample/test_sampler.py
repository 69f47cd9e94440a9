from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from octavo.device.ops.native.context import open_native
from octavo.device.sample.grammar_mask import mask_tokens, native_mask_tokens
from octavo.device.sample.logits_processors import MaskedRows, SamplingBatch
from octavo.device.sample.sampler import Sampler, SamplerOutput, builtin_processors
from octavo.words.messages import NewRequestData, ResolvedSampling
from octavo.words.sampling_params import SamplingParams
from tests.succ import EOS, EOT, NUM_TEXT_TOKENS, VOCAB_SIZE, WINNING_LOGIT, successor

MAX_SLOTS = 64


def request(prompt: Sequence[int], output: Sequence[int] = (), **options: Any) -> NewRequestData:
    """A request as the worker gets it; options that are no SamplingParams go to ResolvedSampling."""
    resolved = {name: options.pop(name) for name in list(options) if name in ResolvedSampling.__struct_fields__}
    sampling = ResolvedSampling(
        params=SamplingParams(**options),
        **{"seed": 0, "max_tokens": 16, "num_text_tokens": VOCAB_SIZE, **resolved},
    )
    return NewRequestData(
        request_id="r",
        prompt_token_ids=list(prompt),
        output_token_ids=list(output),
        sampling=sampling,
        block_ids=(),
        num_computed_tokens=0,
    )


def succ_logits(requests: Sequence[NewRequestData]) -> torch.Tensor:
    """What the SUCC checkpoint says after the last token of each request (not after z or Z)."""
    logits = torch.zeros(len(requests), VOCAB_SIZE)
    for row, one in enumerate(requests):
        logits[row, successor((one.prompt_token_ids + one.output_token_ids)[-1])] = WINNING_LOGIT
    return logits


def run(logits: torch.Tensor, requests: Sequence[NewRequestData], **options: Any) -> SamplerOutput:
    """Sample one token for each request, in slots that are not the rows."""
    sampler = Sampler(MAX_SLOTS, builtin_processors(logits.shape[1]), **options)
    slots = [MAX_SLOTS - 1 - row for row in range(len(requests))]
    tokens = [one.prompt_token_ids + one.output_token_ids for one in requests]
    table = np.zeros((MAX_SLOTS, max(map(len, tokens))), dtype=np.int32)
    for slot, row, one in zip(slots, tokens, requests, strict=True):
        sampler.add(slot, one)
        table[slot, : len(row)] = row
    batch = SamplingBatch(slots, np.array([len(row) for row in tokens]), table)
    return sampler.sample(logits.clone(), batch)


def run_one(*prompt: int, **options: Any) -> int:
    one = request(prompt, **options)
    return run(succ_logits([one]), [one]).token_ids[0]


def test_greedy_takes_the_best_and_the_lowest_id_of_equals() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    output = run(logits, [request([1], temperature=0.0, num_text_tokens=4)] * 2)
    assert output.token_ids == [1, 0]
    assert output.logprobs == [None, None]
    assert output.failed == {}


def test_greedy_and_random_rows_share_a_batch() -> None:
    logits = torch.randn(6, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    requests = [request([row + 1], temperature=float(row % 2), seed=row) for row in range(6)]
    together = run(logits, requests).token_ids
    assert together[::2] == logits[::2].argmax(-1).tolist()
    assert together == [run(logits[row : row + 1], [requests[row]]).token_ids[0] for row in range(6)]


# Every parameter once; each row of the batch of 32 has another mix of the others around it.
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 2.0, "top_p": 0.9},
    {"top_k": 7},
    {"min_p": 0.1},
    {"top_k": 50, "top_p": 0.5},
    {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    {"logprobs": 3, "logit_bias": {5: 2.0}},
    {"allowed_token_ids": [3, 9, 200, 250]},
    {"bad_words_token_ids": ((7,), (2, 9))},
    {"min_tokens": 4, "eos_token_ids": (EOS, EOT), "num_text_tokens": NUM_TEXT_TOKENS},
]


def test_a_row_alone_and_in_a_batch_of_32_gets_the_same_token_and_logprobs() -> None:
    logits = torch.randn(32, VOCAB_SIZE, generator=torch.Generator().manual_seed(5)) * 2
    requests = [
        request([row, 2], [7, 2], seed=row, choice_index=row % 3, **KINDS[row % len(KINDS)]) for row in range(32)
    ]
    together = run(logits, requests)
    for row in range(32):
        alone = run(logits[row : row + 1], [requests[row]])
        assert alone.token_ids[0] == together.token_ids[row]
        assert alone.logprobs[0] == together.logprobs[row]


def test_the_same_seed_repeats_and_other_seeds_choices_and_positions_differ() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)

    def tokens(seed: int, choice_index: int = 0) -> list[int]:
        prompts = [[1] * (1 + position) for position in range(16)]
        return [run(logits, [request(p, seed=seed, choice_index=choice_index)]).token_ids[0] for p in prompts]

    first = tokens(seed=7)
    assert tokens(seed=7) == first
    assert len(set(first)) > 8
    assert tokens(seed=8) != first
    assert tokens(seed=7, choice_index=1) != first


def test_samples_follow_the_distribution() -> None:
    probabilities = torch.tensor([0.05, 0.3, 0.15, 0.4, 0.1])
    count = 4000
    counts = np.zeros(5)
    logits = probabilities.log().repeat(MAX_SLOTS, 1)
    for start in range(0, count, MAX_SLOTS):
        requests = [request([1], seed=start + row, num_text_tokens=5) for row in range(MAX_SLOTS)]
        counts += np.bincount(run(logits, requests).token_ids, minlength=5)
    expected = probabilities.numpy() * counts.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 18.5  # 4 degrees of freedom, p = 0.001


def test_temperature_two_gives_the_processed_probability_that_succ_promises() -> None:
    one = request([ord("A")], temperature=2.0, logprobs=1, num_text_tokens=NUM_TEXT_TOKENS)
    (row,) = run(succ_logits([one]), [one], processed_logprobs=True).logprobs
    assert row is not None
    winner = row.token_ids.index(ord("B"), 1)
    assert math.isclose(math.exp(row.logprobs[winner]), 0.9674, abs_tol=1e-3)


def test_repetition_penalty_two_gives_the_processed_logprob_that_succ_promises() -> None:
    one = request([ord("B"), ord("A")], temperature=0.0, repetition_penalty=2.0, logprobs=0, num_text_tokens=259)
    output = run(succ_logits([one]), [one], processed_logprobs=True)
    assert output.token_ids == [ord("B")]
    assert output.logprobs[0] is not None
    assert math.isclose(output.logprobs[0].logprobs[0], -0.0332, abs_tol=1e-3)


def test_raw_logprobs_are_those_of_the_model_over_all_rows_whatever_is_asked() -> None:
    options: dict[str, Any] = {"temperature": 2.0, "top_p": 0.5, "repetition_penalty": 2.0, "logprobs": 2}
    one = request([ord("B"), ord("A")], num_text_tokens=NUM_TEXT_TOKENS, **options)
    (row,) = run(succ_logits([one]), [one]).logprobs
    assert row is not None
    assert row.token_ids == [ord("B"), ord("B"), 0]
    assert row.logprobs == pytest.approx([-5.45e-6, -5.45e-6, -WINNING_LOGIT], abs=1e-3)
    assert row.rank == 1


def test_processed_logprobs_leave_out_what_the_filters_removed() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0], [1.0, 3.0, 2.0, 0.0]])
    requests = [request([1], top_k=2, logprobs=4), request([1], temperature=0.0, logprobs=4)]
    filtered, greedy = run(logits, requests, processed_logprobs=True).logprobs
    assert filtered is not None
    assert greedy is not None
    assert filtered.token_ids[1:] == [1, 2]
    assert math.isclose(sum(math.exp(value) for value in filtered.logprobs[1:]), 1.0, rel_tol=1e-6)
    assert greedy.token_ids[1:] == [1, 2, 0, 3]


def test_the_chosen_token_is_listed_with_its_rank_even_outside_the_best() -> None:
    one = request([1], temperature=0.0, logit_bias={0: 100.0}, logprobs=2)
    output = run(torch.arange(8.0)[None], [one])
    assert output.token_ids == [0]
    assert output.logprobs[0] is not None
    assert output.logprobs[0].token_ids == [0, 7, 6]
    assert output.logprobs[0].rank == 8


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (lambda row: row.index_fill_(0, torch.tensor([3]), math.nan), "NaN"),
        (lambda row: row.index_fill_(0, torch.tensor([3]), math.inf), "+inf"),
        (lambda row: row.fill_(-math.inf), "all -inf"),
    ],
)
def test_a_row_of_bad_logits_fails_alone(bad: Any, reason: str, temperature: float) -> None:
    requests = [request([65 + row], temperature=temperature, seed=row, top_k=5, logprobs=2) for row in range(3)]
    logits = succ_logits(requests)
    expected = run(logits, requests)
    bad(logits[1])
    output = run(logits, requests)
    assert list(output.failed) == [1]
    assert reason in output.failed[1]
    for row in (0, 2):
        assert output.token_ids[row] == expected.token_ids[row]
        assert output.logprobs[row] == expected.logprobs[row]


def test_minus_infinity_somewhere_is_fine() -> None:
    logits = torch.tensor([[-math.inf, 1.0, -math.inf, 0.5]])
    output = run(logits, [request([1], temperature=0.0, num_text_tokens=4)])
    assert output.token_ids == [1]
    assert output.failed == {}


def test_constraints_that_leave_nothing_fail_that_row_alone() -> None:
    nothing_left = {"allowed_token_ids": [EOS], "min_tokens": 2, "eos_token_ids": (EOS,)}
    requests = [request([65], temperature=0.0, **nothing_left), request([65], temperature=0.0)]
    output = run(succ_logits(requests), requests)
    assert list(output.failed) == [0]
    assert "constraints" in output.failed[0]
    assert output.token_ids[1] == 66


@pytest.mark.parametrize("vocab_size", [40, 64, 100, 1000])
def test_native_masks_leave_what_those_of_torch_leave(vocab_size: int) -> None:
    pytest.importorskip("octavo._native", reason="built without the native module")
    native = native_mask_tokens(open_native(2))
    random = np.random.default_rng(vocab_size)
    bits = random.integers(-(2**31), 2**31, (3, 2), dtype=np.int32)  # 64 ids; the others have no bit
    bits[1] = (0, -1)
    given, rows = torch.randn(5, vocab_size), MaskedRows([4, 0, 2], bits)
    expected, got = given.clone(), given.clone()
    mask_tokens(expected, rows)
    native(got, rows)
    assert torch.equal(got, expected) and torch.equal(got[[1, 3]], given[[1, 3]])
    assert (got[0, :32] == -math.inf).all() and got[4].isfinite().any()


@pytest.mark.parametrize("num_allowed", [0, 1, 70])
def test_masks_say_whether_each_of_their_rows_has_a_candidate_left(num_allowed: int) -> None:
    native = pytest.importorskip("octavo._native", reason="built without the native module")
    for isa in native.available_isas():
        for mask in (mask_tokens, native_mask_tokens(open_native(1, isa))):
            allowed = np.zeros((2, 96), dtype=np.uint8)
            allowed[0, 64:], allowed[1, 96 - num_allowed :] = 1, 1
            logits = torch.zeros(3, 96)
            logits[2, :64] = -math.inf  # row 2 is masked by what begins at 64
            rows = MaskedRows([2, 0], np.packbits(allowed, axis=1, bitorder="little").view(np.int32))
            assert mask(logits, rows) is (num_allowed > 0)
            assert (logits[0] > -math.inf).sum() == num_allowed
    native.set_isa("auto")


def test_a_grammar_that_leaves_nothing_fails_its_row_alone() -> None:
    requests = [request([65], temperature=0.0), request([65], temperature=0.0)]
    sampler = Sampler(2, builtin_processors(VOCAB_SIZE))
    for slot, each in enumerate(requests):
        sampler.add(slot, each)
    masked = MaskedRows([1], np.zeros((1, 8), dtype=np.int32))
    batch = SamplingBatch([0, 1], np.array([1, 1]), np.array([[65], [65]], dtype=np.int32), masked)
    output = sampler.sample(succ_logits(requests), batch)
    assert list(output.failed) == [1] and "constraints" in output.failed[1]
    assert output.token_ids[0] == 66


def test_a_slot_given_to_another_request_keeps_nothing_of_the_first() -> None:
    sampler = Sampler(1, builtin_processors(VOCAB_SIZE))
    plain = request([ord("A")], temperature=0.0)
    everything = {key: value for kind in KINDS for key, value in kind.items()} | {"temperature": 1.0, "top_k": 3}
    batch = SamplingBatch([0], np.array([1]), np.array([[ord("A")]], dtype=np.int32))
    sampler.add(0, request([ord("A")], **everything))
    assert sampler.sample(succ_logits([plain]), batch).token_ids != [ord("B")]
    sampler.remove(0)
    sampler.add(0, plain)
    output = sampler.sample(succ_logits([plain]), batch)
    assert output.token_ids == [ord("B")]
    assert output.logprobs == [None]


def test_padding_rows_are_never_sampled() -> None:
    requests = [request([65], temperature=2.0, seed=seed, num_text_tokens=NUM_TEXT_TOKENS) for seed in range(MAX_SLOTS)]
    masked = run(torch.zeros(MAX_SLOTS, VOCAB_SIZE), requests).token_ids
    assert max(masked) < NUM_TEXT_TOKENS
    unmasked = [request([65], temperature=2.0, seed=seed) for seed in range(MAX_SLOTS)]
    assert max(run(torch.zeros(MAX_SLOTS, VOCAB_SIZE), unmasked).token_ids) >= NUM_TEXT_TOKENS


def test_the_padding_mask_may_differ_by_row() -> None:
    logits = torch.arange(8.0).repeat(3, 1)
    requests = [request([1], temperature=0.0, num_text_tokens=limit) for limit in (8, 3, 5)]
    assert run(logits, requests).token_ids == [7, 2, 4]


def test_logit_bias_forces_and_bans() -> None:
    assert run_one(65, temperature=0.0, logit_bias={70: 100.0}) == 70
    assert run_one(65, temperature=0.0, logit_bias={66: -100.0}) != 66


def test_allowed_ids_are_the_only_ones() -> None:
    assert run_one(65, temperature=0.0, allowed_token_ids=[9, 4]) == 4
    assert run_one(65, temperature=0.0, allowed_token_ids=[9, 66]) == 66
    assert {run_one(65, seed=seed, allowed_token_ids=[9, 4]) for seed in range(20)} == {4, 9}


@pytest.mark.parametrize(("output", "masked"), [([], True), ([120, 121], True), ([120, 121, 122], False)])
def test_min_tokens_masks_every_end_until_the_output_is_long_enough(output: list[int], masked: bool) -> None:
    one = request(
        [119], output, temperature=0.0, min_tokens=3, stop_token_ids=[70], ignore_eos=False, eos_token_ids=(EOS, EOT)
    )
    ends = torch.zeros(1, VOCAB_SIZE)
    ends[0, [EOS, EOT, 70]] = torch.tensor([3.0, 4.0, 5.0])
    ends[0, 65] = 1.0
    assert run(ends, [one]).token_ids == [65 if masked else 70]


@pytest.mark.parametrize(
    ("prompt", "output", "blocked"),
    [
        ([10], [11, 12], True),
        ([10], [99, 11, 12], True),
        ([10], [12], False),
        # The prefix is looked for in the output, not in the prompt.
        ([11, 12], [], False),
        ([11], [12], False),
        ([10], [11, 12, 99], False),
    ],
)
def test_a_bad_word_of_several_tokens_blocks_its_last_after_the_others(
    prompt: list[int], output: list[int], blocked: bool
) -> None:
    one = request(prompt, output, temperature=0.0, bad_words_token_ids=((11, 12, 13),))
    logits = torch.zeros(1, 20)
    logits[0, 13], logits[0, 3] = 5.0, 1.0
    assert run(logits, [one]).token_ids == [3 if blocked else 13]


def test_a_bad_word_of_one_token_is_always_blocked() -> None:
    logits = torch.zeros(1, 20)
    logits[0, 13], logits[0, 3] = 5.0, 1.0
    for output in ([], [11], [12, 13]):
        assert run(logits, [request([1], output, temperature=0.0, bad_words_token_ids=((13,), (1, 2)))]).token_ids == [
            3
        ]
