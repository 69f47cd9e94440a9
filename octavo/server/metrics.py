"""The page that Prometheus reads, in its text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from octavo.engine.metric import Counter, Gauge, Histogram, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

HELP = {
    "vllm:num_requests_running": "Requests in the running batch.",
    "vllm:num_requests_waiting": "Requests that wait to be scheduled.",
    "vllm:kv_cache_usage_perc": "Share of the KV blocks that requests hold; 1 = all.",
    "vllm:cache_config_info": "The KV cache; the value is always 1.",
    "octavo:num_beam_forks": "Beams that went on as copies of another.",
    "vllm:num_preemptions": "Requests sent back to the queue to make room.",
    "vllm:prefix_cache_queries": "Tokens looked up in the prefix cache.",
    "vllm:prefix_cache_hits": "Tokens found in the prefix cache.",
    "vllm:spec_decode_num_drafts": "Steps of requests that verified drafts.",
    "vllm:spec_decode_num_draft_tokens": "Drafts verified.",
    "vllm:spec_decode_num_accepted_tokens": "Drafts that were right.",
    "vllm:spec_decode_num_accepted_tokens_per_pos": "Drafts that were right, by their place among those of a step.",
    "vllm:prompt_tokens": "Prompt tokens of requests that got a token.",
    "vllm:prompt_tokens_cached": "Those of them that came from the prefix cache.",
    "vllm:generation_tokens": "Tokens generated.",
    "vllm:tool_call_parser_invocations": "Answers to requests with tools, each once: read for calls until its end.",
    "vllm:request_success": "Answers that ended, by reason.",
    "vllm:time_to_first_token_seconds": "From arrival to the first token.",
    "vllm:inter_token_latency_seconds": "From one output to the next of the same answer.",
    "vllm:request_time_per_output_token_seconds": "Mean time per token after the first, by answer.",
    "vllm:e2e_request_latency_seconds": "From arrival to the end.",
    "vllm:request_queue_time_seconds": "From arrival to the first step.",
    "vllm:request_prefill_time_seconds": "From the first step to the first token.",
    "vllm:request_decode_time_seconds": "From the first token to the last.",
    "vllm:request_inference_time_seconds": "From the first step to the last token.",
    "vllm:request_prompt_tokens": "Tokens of the prompt.",
    "vllm:request_generation_tokens": "Tokens of the answer.",
    "vllm:request_max_num_generation_tokens": "Tokens of the longest answer.",
    "vllm:request_prefill_kv_computed_tokens": "Prompt tokens that were computed, not found in the cache.",
    "vllm:request_params_max_tokens": "max_tokens of requests.",
    "vllm:request_params_n": "n of requests.",
    "vllm:request_num_preemptions": "How often a request was sent back to the queue.",
    "vllm:iteration_tokens_total": "Prompt and generated tokens by step.",
    "octavo:spec_decode_num_trials": "Steps with drafts that were not taken, only judged in hindsight.",
    "octavo:num_steps": "Steps of the model.",
    "octavo:num_prefill_chunks": "Parts of prompts computed in steps of their own, the last ones aside.",
    "octavo:num_bursts": "Times that several decode steps were run at once.",
    "octavo:num_burst_steps": "Steps of the model in these.",
    "octavo:engine_ready": "1 while the engine core is there and makes progress.",
    "octavo:engine_restarts": "Times the engine core was started again.",
    "octavo:request_replays": "Requests that went on in another core.",
    "octavo:requests_ended_with_engine": "Requests ended because they end the engine core.",
}
"""One line for each metric, by name. Counters are shown with _total at the end of their name."""


def metrics_page(metrics: Iterable[Metric], labels: Mapping[str, str]) -> bytes:
    """All of ``metrics``, each with ``labels`` beside its own, and what the system says of this process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_EngineCollector(metrics, labels))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _EngineCollector(Collector):
    """Turns our metrics into families of Prometheus' client: the series of one name together."""

    def __init__(self, metrics: Iterable[Metric], labels: Mapping[str, str]) -> None:
        self._by_name: dict[str, list[Metric]] = {}
        for metric in metrics:
            self._by_name.setdefault(metric.name, []).append(metric)
        self._labels = dict(labels)

    def collect(self) -> Iterator[Family]:
        for name, series in self._by_name.items():
            yield self._family(name, series)

    def _family(self, name: str, series: Sequence[Metric]) -> Family:
        names = [*self._labels, *series[0].labels]
        text = HELP.get(name, name)
        families: dict[type[Metric], Family] = {
            Gauge: GaugeMetricFamily(name, text, labels=names),
            Counter: CounterMetricFamily(name, text, labels=names),
            Histogram: HistogramMetricFamily(name, text, labels=names),
        }
        family = families[type(series[0])]
        for metric in series:
            _add(family, [*self._labels.values(), *metric.labels.values()], metric)
        return family


def _add(family: Family, labels: Sequence[str], metric: Metric) -> None:
    if isinstance(family, HistogramMetricFamily) and isinstance(metric, Histogram):
        family.add_metric(labels, buckets=list(_cumulative(metric)), sum_value=metric.sum)
    elif isinstance(family, GaugeMetricFamily | CounterMetricFamily):
        family.add_metric(labels, metric.value)


def _cumulative(metric: Histogram) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, count in zip((*map(_shown, metric.bounds), "+Inf"), metric.counts, strict=True):
        total += count
        yield bound, total


def _shown(bound: float) -> str:
    return repr(float(bound))
