from __future__ import annotations

from typing import Any

import msgspec
import pytest

from octavo.engine.metric import Counter, Histogram
from octavo.engine.request_stats import Distribution, RequestStats, one_two_five
from octavo.words.lora import Adapter
from octavo.words.messages import EngineCoreOutput, FinishReason
from tests.fakes import make_message


class Scene:
    """Request statistics under a clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0
        self.stats = RequestStats(8192, clock=lambda: self.now)

    def begin(self, name: str, num_prompt: int = 10, *, choice_index: int = 0, **options: Any) -> None:
        request = make_message(name, num_prompt, arrival_time=self.now, **options)
        request.sampling = msgspec.structs.replace(request.sampling, choice_index=choice_index)
        self.stats.begin(request)

    def say(self, at: float, name: str, *token_ids: int, end: FinishReason | None = None, num_cached: int = 0) -> None:
        self.now = at
        output = EngineCoreOutput(
            request_id=name,
            new_token_ids=list(token_ids),
            finish_reason=end,
            num_cached_tokens=num_cached,
            num_preemptions=2,
            first_scheduled_time=101.0,
        )
        self.stats.record([output])

    def histogram(self, name: str) -> Histogram:
        [found] = [metric for metric in self.stats.metrics() if metric.name == f"vllm:{name}"]
        assert isinstance(found, Histogram)
        return found

    def counter(self, name: str, **labels: str) -> int:
        found = [metric for metric in self.stats.metrics() if metric.name == f"vllm:{name}" and metric.labels == labels]
        assert all(isinstance(metric, Counter) for metric in found)
        return sum(int(metric.value) for metric in found)


def test_times_of_a_request_add_up() -> None:
    scene = Scene()
    scene.begin("a", max_tokens=3)
    scene.say(103.0, "a", 1, num_cached=4)
    scene.say(104.0, "a", 2)
    scene.say(106.0, "a", 3, end=FinishReason.LENGTH)
    sums = {
        "request_queue_time_seconds": 1.0,
        "request_prefill_time_seconds": 2.0,
        "request_decode_time_seconds": 3.0,
        "request_inference_time_seconds": 5.0,
        "e2e_request_latency_seconds": 6.0,
        "time_to_first_token_seconds": 3.0,
        "inter_token_latency_seconds": 3.0,
        "request_time_per_output_token_seconds": 1.5,
        "request_prompt_tokens": 10.0,
        "request_generation_tokens": 3.0,
        "request_prefill_kv_computed_tokens": 6.0,
        "request_params_max_tokens": 3.0,
        "request_num_preemptions": 2.0,
        "iteration_tokens_total": 13.0,
    }
    assert {name: scene.histogram(name).sum for name in sums} == pytest.approx(sums)
    assert scene.histogram("inter_token_latency_seconds").value == 2
    assert scene.histogram("iteration_tokens_total").value == 3
    assert (scene.counter("prompt_tokens"), scene.counter("prompt_tokens_cached")) == (10, 4)
    assert scene.stats.num_open == 0


def test_counts_agree_with_what_clients_are_told() -> None:
    """Case ME01."""
    scene = Scene()
    for number in range(20):
        scene.begin(f"r{number}")
    for number in range(17):
        scene.say(101.0, f"r{number}", 1)
    scene.stats.end([f"r{number}" for number in range(5)], "abort")
    for number in range(5, 17):
        scene.say(102.0, f"r{number}", 2, 3, end=FinishReason.STOP)
    for number in range(17, 20):
        scene.say(102.0, f"r{number}", end=FinishReason.ERROR)
    scene.stats.end(["r0", "unknown"], "abort")
    scene.say(103.0, "r1", 9)
    ended = {reason: scene.counter("request_success", finished_reason=reason) for reason in ("abort", "stop", "error")}
    assert ended == {"abort": 5, "stop": 12, "error": 3}
    assert scene.histogram("time_to_first_token_seconds").value == 17
    assert scene.counter("prompt_tokens") == 170
    assert scene.counter("generation_tokens") == 5 + 12 * 3
    assert scene.histogram("request_queue_time_seconds").value == 17
    assert scene.stats.num_open == 0


def test_choices_share_one_prompt() -> None:
    scene = Scene()
    scene.begin("0_a", n=2)
    scene.begin("1_a", n=2, choice_index=1)
    scene.say(101.0, "1_a", 1, num_cached=8)
    scene.say(102.0, "0_a", 1)
    assert (scene.counter("prompt_tokens"), scene.counter("prompt_tokens_cached")) == (10, 0)
    assert scene.counter("generation_tokens") == 2


def test_a_value_on_a_bound_belongs_below_it() -> None:
    distribution = Distribution((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        distribution.add(value)
    assert distribution.counts == [2, 2, 1]
    assert distribution.sum == 7.5


def test_buckets_of_tokens_end_at_the_longest_request() -> None:
    assert one_two_five(100) == (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
    assert one_two_five(99)[-1] == 50.0


def test_adapters_that_run_and_wait_are_told_to_routers() -> None:
    stats = RequestStats(8192, max_loras=4, clock=lambda: 123.0)
    for name, adapter in (("a", "sql"), ("b", "law"), ("c", "sql"), ("d", None)):
        message = make_message(name)
        message.adapter = None if adapter is None else Adapter(adapter, "", adapter)
        stats.begin(message)
    stats.record([EngineCoreOutput(request_id="a", new_token_ids=[1])])
    (gauge,) = (metric for metric in stats.metrics() if metric.name == "vllm:lora_requests_info")
    told = {"max_lora": "4", "running_lora_adapters": "sql", "waiting_lora_adapters": "law,sql"}
    assert (gauge.value, gauge.labels) == (123.0, told)


def test_without_lora_there_is_no_gauge_of_adapters() -> None:
    assert not [metric for metric in RequestStats(8192).metrics() if "lora" in metric.name]
