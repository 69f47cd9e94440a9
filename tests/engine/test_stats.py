from __future__ import annotations

import logging

import pytest

from octavo.engine.metric import Counter, Gauge
from octavo.engine.request_stats import RequestStats
from octavo.engine.stats import IterationStats, LoggingStatLogger, Statistics
from octavo.words.messages import EngineCoreOutput, EngineCoreOutputs, FinishReason, SchedulerStats
from tests.fakes import FakeClock, make_message


def test_the_line_is_that_of_vllm(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    stats = LoggingStatLogger(clock=clock)
    stats.record(
        SchedulerStats(
            num_steps=5,
            num_running=3,
            num_waiting=2,
            kv_cache_usage=0.125,
            num_prompt_tokens=1000,
            num_generation_tokens=50,
            prefix_cache_queries=400,
            prefix_cache_hits=100,
        ),
        IterationStats(),
    )
    clock.now += 10.0
    with caplog.at_level(logging.INFO, "octavo"):
        stats.log()
    assert caplog.messages == [
        "Engine 000: Avg prompt throughput: 100.0 tokens/s, Avg generation throughput: 5.0 tokens/s, "
        "Running: 3 reqs, Waiting: 2 reqs, CPU KV cache usage: 12.5%, Prefix cache hit rate: 25.0%"
    ]


def test_it_is_silent_while_nothing_happens(caplog: pytest.LogCaptureFixture) -> None:
    stats = LoggingStatLogger(clock=FakeClock())
    stats.record(SchedulerStats(num_steps=5), IterationStats())
    with caplog.at_level(logging.INFO, "octavo"):
        stats.log()
        stats.log()
    assert len(caplog.messages) == 1


def test_a_snapshot_has_the_scheduler_s_books_the_requests_and_what_others_count() -> None:
    statistics = Statistics(RequestStats(64))
    requests = [make_message(name, 4, max_tokens=2) for name in ("a", "b", "c", "d")]
    statistics.begin(requests)
    outputs = [
        EngineCoreOutput(request_id="a", new_token_ids=[1, 2], finish_reason=FinishReason.STOP),
        EngineCoreOutput(request_id="b", new_token_ids=[1], finish_reason=FinishReason.LENGTH),
        EngineCoreOutput(request_id="c", new_token_ids=[1]),
    ]
    assert IterationStats.of(outputs).num_generation_tokens == 4
    books = SchedulerStats(num_running=1, prefix_cache_hits=32, kv_cache_usage=0.5)
    statistics.record(EngineCoreOutputs(outputs=outputs, stats=books), ["c"])
    statistics.end(["d", "a"], FinishReason.ABORT)
    assert statistics.newest is books

    metrics = statistics.snapshot(books, [Counter("octavo:more", 3)])
    assert Gauge("vllm:num_requests_running", 1) in metrics
    assert Gauge("vllm:kv_cache_usage_perc", 0.5) in metrics
    assert Counter("vllm:prefix_cache_hits", 32) in metrics
    assert Counter("octavo:more", 3) in metrics
    finished = {m.labels["finished_reason"]: m.value for m in metrics if m.name == "vllm:request_success"}
    assert finished == {"abort": 1, "length": 1, "stop": 2}


@pytest.mark.parametrize("reason", list(FinishReason))
def test_every_finish_reason_has_a_name(reason: FinishReason) -> None:
    output = EngineCoreOutput(request_id="a", new_token_ids=[], finish_reason=reason)
    assert list(IterationStats.of([output]).finished) == [str(reason)]
