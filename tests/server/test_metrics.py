from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from octavo.engine.metric import Counter, Gauge, Histogram
from octavo.server.metrics import HELP, metrics_page
from tests.server.conftest import RunningServer

LABELS = {"model_name": 'a "model"\n', "engine": "0"}


def test_the_page_is_what_prometheus_reads() -> None:
    page = metrics_page(
        [
            Gauge("vllm:kv_cache_usage_perc", 0.25),
            Counter("vllm:request_success", 3, {"finished_reason": "stop"}),
            Counter("vllm:request_success", 1, {"finished_reason": "abort"}),
            Histogram("vllm:request_params_n", (1.0, 2.0), (4, 1, 2), 17.0),
        ],
        LABELS,
    ).decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert families["vllm:kv_cache_usage_perc"].type == "gauge"
    assert families["vllm:request_success"].type == "counter"
    assert families["vllm:request_params_n"].type == "histogram"
    samples = {
        (sample.name, sample.labels.get("finished_reason") or sample.labels.get("le")): sample.value
        for name, family in families.items()
        if name.startswith("vllm:")
        for sample in family.samples
    }
    assert samples == {
        ("vllm:kv_cache_usage_perc", None): 0.25,
        ("vllm:request_success_total", "stop"): 3,
        ("vllm:request_success_total", "abort"): 1,
        ("vllm:request_params_n_bucket", "1.0"): 4,
        ("vllm:request_params_n_bucket", "2.0"): 5,
        ("vllm:request_params_n_bucket", "+Inf"): 7,
        ("vllm:request_params_n_count", None): 7,
        ("vllm:request_params_n_sum", None): 17.0,
    }
    for sample in families["vllm:request_success"].samples:
        assert {name: sample.labels[name] for name in LABELS} == LABELS
    assert "process_resident_memory_bytes" in families
    assert page.count("# TYPE vllm:request_success_total counter") == 1
    for name in ("vllm:kv_cache_usage_perc", "vllm:request_success", "vllm:request_params_n"):
        assert families[name].documentation == HELP[name]


def samples_of(server: RunningServer) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    page = server.client.get("/metrics").text
    families = text_string_to_metric_families(page)
    return [(each.name, tuple(sorted(each.labels.items()))) for family in families for each in family.samples]


def test_each_series_stands_once_and_clients_add_none(server: RunningServer) -> None:  # ME02 ME05
    server.complete("A", max_tokens=2)
    before = samples_of(server)
    assert len(before) == len(set(before))
    for number in range(20):
        headers = {"X-Request-Id": f"id-{number}"}
        body = {"model": f"unknown-{number}", "prompt": "A", "user": f"user-{number}"}
        assert server.client.post("/v1/completions", json=body, headers=headers).status_code == 404
        assert server.client.get(f"/unknown-{number}").status_code == 404
    assert samples_of(server) == before
