"""What stands in deploy/ names metrics, flags and routes that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from octavo.config.flat import config_from_kwargs
from octavo.engine.client import make_supervised_client
from octavo.engine.request_stats import RequestStats
from octavo.engine.stats import cache_metrics, scheduler_metrics
from octavo.server.metrics import HELP, metrics_page
from octavo.server.tool_call_counts import ToolCallCounts
from octavo.words.messages import EngineCoreOutput, FinishReason, SchedulerStats
from tests.fakes import make_message

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
LABELS = {"model_name": "m", "engine": "0"}
METRIC_NAME = re.compile(r"\b((?:vllm|octavo):[a-z0-9_]+|process_[a-z_]+|up)\b")
MADE_BY_PROMETHEUS = {"up"}


@pytest.fixture(scope="module")
def series() -> dict[str, set[str]]:
    """Every series on the page of a server, with its labels."""
    config = config_from_kwargs(model="simulated", distributed_executor_backend="simulated", plugins="")
    client = make_supervised_client(config)
    try:
        more = [*cache_metrics(client.info), *client.metrics()]
    finally:
        client.shutdown()
    requests = RequestStats(8192)
    requests.begin(make_message("a"))
    requests.record([EngineCoreOutput(request_id="a", new_token_ids=[1], finish_reason=FinishReason.STOP)])
    metrics = [*scheduler_metrics(SchedulerStats(num_accepted_tokens_per_pos=[1])), *requests.metrics(), *more]
    metrics += ToolCallCounts().metrics()
    assert {metric.name for metric in metrics} == set(HELP), "every metric has its line of help, and no other"
    page = metrics_page(metrics, LABELS).decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def dashboard_expressions() -> Iterator[str]:
    dashboard = json.loads((DEPLOY / "grafana" / "octavo.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in dashboard["templating"]["list"]:
        yield variable["query"]


def alerts() -> Iterator[dict[str, Any]]:
    for group in load_yaml("prometheus/alerts.yml")["groups"]:
        yield from group["rules"]


def load_yaml(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


@pytest.mark.parametrize("expression", [*dashboard_expressions(), *(alert["expr"] for alert in alerts())])
def test_an_expression_names_series_and_labels_that_exist(expression: str, series: dict[str, set[str]]) -> None:
    names = set(METRIC_NAME.findall(expression)) - MADE_BY_PROMETHEUS
    assert names or "up" in expression
    assert names <= set(series), f"unknown: {names - set(series)}"
    labels = set(re.findall(r"([a-z_]+)=~?\"", expression)) | {
        label for listed in re.findall(r"by \(([^)]*)\)", expression) for label in re.split(r",\s*", listed)
    }
    known = {"instance", "job"} | {label for name in names for label in series[name]}
    assert labels <= known
    for opening, closing in ("()", "[]", "{}"):
        assert expression.count(opening) == expression.count(closing)


def test_every_alert_says_what_is_wrong_and_how_bad_it_is() -> None:
    found = list(alerts())
    assert len({alert["alert"] for alert in found}) == len(found) >= 5
    for alert in found:
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert alert["annotations"]["summary"]


def test_the_kubernetes_manifest_probes_life_and_health_and_lets_answers_drain() -> None:
    deployment, service = yaml.safe_load_all((DEPLOY / "kubernetes" / "octavo.yaml").read_text())
    assert (deployment["kind"], service["kind"]) == ("Deployment", "Service")
    pod = deployment["spec"]["template"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    [container] = pod["spec"]["containers"]
    ports = {port["name"] for port in container["ports"]}
    paths = {
        probe: container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert paths == {"startupProbe": "/health", "readinessProbe": "/health", "livenessProbe": "/live"}
    assert {container[probe]["httpGet"]["port"] for probe in paths} <= ports
    assert service["spec"]["ports"][0]["targetPort"] in ports
    arguments = container["args"]
    drain_s = int(arguments[arguments.index("--shutdown-timeout") + 1])
    assert pod["spec"]["terminationGracePeriodSeconds"] > drain_s + 5
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {each["name"] for each in pod["spec"]["volumes"]}


def test_compose_and_the_image_agree_with_the_rest() -> None:
    compose = load_yaml("compose.yaml")
    octavo = compose["services"]["octavo"]
    assert (DEPLOY / octavo["build"]["context"] / octavo["build"]["dockerfile"]).is_file()
    drain_s = int(octavo["command"][octavo["command"].index("--shutdown-timeout") + 1])
    assert int(octavo["stop_grace_period"].removesuffix("s")) > drain_s + 5
    for service in compose["services"].values():
        assert all(str(port).startswith("127.0.0.1:") for port in service["ports"]), "nothing listens for everybody"
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert 'ENTRYPOINT ["octavo", "serve"]' in dockerfile and "/health" in dockerfile
    assert re.search(r"^USER (?!root)", dockerfile, re.MULTILINE)
    [scrape] = load_yaml("prometheus/prometheus.yml")["scrape_configs"]
    assert scrape["job_name"] == "octavo"
    assert scrape["static_configs"][0]["targets"] == ["octavo:8000"]
