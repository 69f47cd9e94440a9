from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from octavo.engine.metric import Counter, Gauge, Histogram
from octavo.server.metrics import HELP, metrics_page
from tests.server.conftest import MODEL, RunningServer, serving

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


COUNTED = (
    "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds_count",
    "vllm:e2e_request_latency_seconds_count",
)  # fmt: skip


def ended(server: RunningServer) -> dict[str, float]:
    """How many requests ended, by their reason."""
    found = re.findall(
        r'request_success_total{[^}]*finished_reason="(\w+)"[^}]*} (\S+)', server.client.get("/metrics").text
    )
    return {reason: float(value) for reason, value in found}


def test_the_counters_are_the_sums_of_what_clients_were_told(server: RunningServer) -> None:  # ME01
    assert server.becomes_idle()
    server.complete("A", max_tokens=1)
    before, ended_before = [server.metric(name) for name in COUNTED], ended(server)
    answers = [
        server.complete("A" * 10, max_tokens=4),
        server.complete("X", max_tokens=50),
        server.complete(["A", "BC"], n=2, temperature=1, max_tokens=3),
        server.client.post(
            "/v1/chat/completions", json={"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
        ),
    ]
    usages = [answer.json()["usage"] for answer in answers]
    for wrong in ({"max_tokens": -1}, {"model": "nope"}, {"prompt": ""}):
        assert server.client.post("/v1/completions", json={"prompt": "A", **wrong}).status_code >= 400
    num_answers = 1 + 1 + 4 + 1
    spent = [server.metric(name) - value for name, value in zip(COUNTED, before, strict=True)]
    told = [sum(usage[name] for usage in usages) for name in ("prompt_tokens", "completion_tokens")]
    assert spent == [*told, num_answers, num_answers]

    for _ in range(3):
        body = {"prompt": "A", "max_tokens": 4_000, "ignore_eos": True, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=body) as stream:
            next(stream.iter_bytes())
    assert server.becomes_idle()
    new = {reason: value - ended_before.get(reason, 0) for reason, value in ended(server).items()}
    assert {reason: value for reason, value in new.items() if value} == {"length": 5, "stop": 2, "abort": 3}
    assert all(value >= 0 for value in map(server.metric, COUNTED))


def test_prompts_are_counted_alike_wherever_they_are_told_of(server: RunningServer) -> None:  # OA12
    prompt = "counted once, told everywhere"
    messages = [{"role": "user", "content": prompt}]
    asked: list[tuple[str, dict[str, object]]] = [
        ("/v1/completions", {"prompt": prompt, "return_token_ids": True}),
        ("/v1/chat/completions", {"messages": messages, "return_token_ids": True}),
        ("/v1/responses", {"input": prompt}),
        ("/v1/messages", {"messages": messages}),
    ]
    for path, fields in asked:
        body = {"model": MODEL, "max_output_tokens": 2, "max_tokens": 2, **fields}
        usage = server.client.post(path, json=body).json()["usage"]
        told = usage.get("prompt_tokens", usage.get("input_tokens", 0) + usage.get("cache_read_input_tokens", 0))
        assert told == len(prompt), path
        stream = server.client.post(path, json={**body, "stream": True, **USAGE.get(path, {})}).text
        counts = re.findall(r'"(?:prompt|input|cache_read_input)_tokens":(\d+)', stream)
        assert counts and len(prompt) in (int(counts[-1]), sum(map(int, counts[:2]))), path


USAGE = dict.fromkeys(("/v1/completions", "/v1/chat/completions"), {"stream_options": {"include_usage": True}})


def test_drafts_are_counted_by_step_by_token_and_by_place(succ: Path, tmp_path: Path) -> None:
    options = ("--speculative-method", "ngram", "--num-speculative-tokens", "3", "--no-adaptive-speculation")
    with serving(succ, tmp_path / "log", "--dtype", "float32", *options) as server:
        # D comes with the prompt; then E F G are right, and of I A B the first; nothing is known to follow J.
        assert server.complete("ABCDEFGHIABC", max_tokens=12).json()["choices"][0]["text"] == "DEFGHIJKLMNO"
        page = server.client.get("/metrics").text
    found = {
        (sample.name.removeprefix("vllm:spec_decode_num_"), sample.labels.get("position")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.startswith("vllm:spec_decode_")
    }
    assert found == {
        ("drafts_total", None): 2,
        ("draft_tokens_total", None): 6,
        ("accepted_tokens_total", None): 4,
        ("accepted_tokens_per_pos_total", "0"): 2,
        ("accepted_tokens_per_pos_total", "1"): 1,
        ("accepted_tokens_per_pos_total", "2"): 1,
    }
