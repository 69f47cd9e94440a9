"""The formulas of limits, each worked out by hand on a model small enough for it."""

from __future__ import annotations

import dataclasses

import pytest

from octavo.bench.limits import ModelCost, Run, StepWork, shares, steps_of
from octavo.bench.roofline import Ceilings
from octavo.util.spans import Span
from octavo.words.model_facts import ModelFacts, RopeFacts

FACTS = ModelFacts(
    architecture="llama",
    source_architecture="LlamaForCausalLM",
    num_layers=2,
    hidden_size=8,
    intermediate_size=16,
    num_heads=4,
    num_kv_heads=2,
    head_size=2,
    vocab_size=10,
    max_position=100,
    norm_eps=1e-5,
    rope=RopeFacts(rotary_dim=2),
)
COST = ModelCost.of(FACTS, "float32", {"layers": 1000, "lm_head": 50})
CEILINGS = Ceilings(read_gbps=1.0, float32_gflops=2.0, bf16_gflops=None, int8_gops=None)


def step(*requests: tuple[int, int], logit_rows: int = 0, seconds: float = 1e-6) -> StepWork:
    return StepWork(requests=requests, logit_rows=logit_rows, seconds=seconds)


def test_parameters_are_those_that_rows_are_multiplied_by() -> None:
    qkv, out, gate_up, down = 8 * (4 + 2 + 2) * 2, 8 * 8, 8 * 32, 16 * 8
    assert COST.layer_parameters == 2 * (qkv + out + gate_up + down)
    assert COST.head_parameters == 80


def test_operations_are_projections_attention_and_head() -> None:
    work = step((0, 3), (5, 1), logit_rows=1)
    context = (1 + 2 + 3) + 6
    assert COST.operations(work) == 2 * COST.layer_parameters * 4 + 2 * 4 * 8 * context + 2 * 80


def test_bytes_are_weights_once_and_each_request_s_keys_and_values() -> None:
    per_token = 2 * 2 * 2 * 4
    assert COST.bytes_read(step((0, 3), (5, 1))) == 1000 + 2 * (3 + 6) * per_token
    assert COST.bytes_read(step((0, 3), logit_rows=1)) == 1000 + 50 + 2 * 3 * per_token


@pytest.mark.parametrize("before", [0, 1, 2, 3, 9])
@pytest.mark.parametrize("new", [1, 2, 5])
def test_a_window_bounds_what_a_token_sees(before: int, new: int) -> None:
    window = 3
    cost = dataclasses.replace(COST, windows=(window,))
    seen = sum(min(before + i + 1, window) for i in range(new))
    assert cost.operations(step((before, new))) == 2 * cost.layer_parameters * new + 4 * 8 * seen
    first = max(0, before - window + 1)
    keys = before + new - first
    assert cost.bytes_read(step((before, new))) == 1000 + keys * cost.kv_bytes_per_token


def test_shares_are_held_against_the_ceilings() -> None:
    prefill, decode = step((0, 3), logit_rows=1, seconds=2e-6), step((3, 1), logit_rows=1, seconds=4e-6)
    found = shares(Run(steps=[prefill, decode], elapsed_s=6e-6, kernel_s=5e-6), COST, CEILINGS, "float32")
    operations = COST.operations(prefill) + COST.operations(decode)
    read = COST.bytes_read(prefill) + COST.bytes_read(decode)
    assert found["unit"] == "float32_gflops"
    assert found["limit_s"] == pytest.approx(operations / 2e9 + read / 1e9)
    assert found["limit_share"] == pytest.approx(found["limit_s"] / 6e-6)
    assert found["mfu"] == pytest.approx(operations / (6e-6 * 2e9))
    assert found["mbu"] == pytest.approx(COST.bytes_read(decode) / (4e-6 * 1e9))
    assert found["step_overhead_ms"] == pytest.approx(1e3 * 1e-6 / 2)


def test_a_run_without_decode_steps_has_no_mbu() -> None:
    found = shares(Run(steps=[step((0, 4), logit_rows=1)], elapsed_s=1.0, kernel_s=None), COST, CEILINGS, "float32")
    assert found["mbu"] is None
    assert found["step_overhead_ms"] is None


def test_bfloat16_is_held_against_its_unit_where_there_is_one() -> None:
    assert CEILINGS.unit("bfloat16") == ("float32_gflops", 2e9)
    both = Ceilings(read_gbps=1.0, float32_gflops=2.0, bf16_gflops=4.0, int8_gops=None)
    assert both.unit("bfloat16") == ("bf16_gflops", 4e9)


def test_the_higher_of_two_measurements_counts_rate_by_rate() -> None:
    later = Ceilings(read_gbps=0.5, float32_gflops=3.0, bf16_gflops=None, int8_gops=None)
    assert CEILINGS.best_with(later) == Ceilings(1.0, 3.0, None, None)


def test_a_burst_is_as_many_steps_as_it_had() -> None:
    facts = {"requests": [[4, 1], [7, 1]], "step": 1}
    done = {"step": 1, "logit_rows": 2, "num_steps": 3}
    spans = [Span("schedule", "core", 100, 10, facts), Span("sample", "core", 150, 10, done)]
    steps = steps_of(spans, end_ns=400)
    assert [each.requests for each in steps] == [((4, 1), (7, 1)), ((5, 1), (8, 1)), ((6, 1), (9, 1))]
    assert [each.seconds for each in steps] == pytest.approx([100e-9] * 3)
    assert all(each.is_decode for each in steps)


def test_a_step_lasts_until_the_next_is_scheduled() -> None:
    def span(name: str, start: int, **facts: object) -> Span:
        return Span(name, "core", start, 10, dict(facts))

    spans = [
        span("sample", 150, step=1, logit_rows=0),
        span("schedule", 100, step=1, requests=[[0, 4]]),
        span("schedule", 300, step=2, requests=[[4, 2], [7, 1]]),
        span("sample", 350, step=2, logit_rows=2),
        span("schedule", 500, step=3, requests=[]),
    ]
    first, second = steps_of(spans, end_ns=600)
    assert (first.requests, first.logit_rows) == (((0, 4),), 0)
    assert (second.requests, second.logit_rows) == (((4, 2), (7, 1)), 2)
    assert (first.seconds, second.seconds) == pytest.approx((200e-9, 300e-9))
    assert not first.is_decode and not second.is_decode
    assert step((4, 1), (7, 1), logit_rows=2).is_decode
