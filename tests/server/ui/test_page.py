from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.server.ui.engine_view import FRESH_S
from octavo.server.ui.page import FOLDER, MEDIA_TYPES
from tests.server.conftest import RunningServer
from tests.server.test_gate import ask, make_context

NAMES = [path.name for path in FOLDER.iterdir()]


@pytest.mark.parametrize("path", ["/ui", *(f"/ui/static/{name}" for name in NAMES)])
def test_the_page_needs_no_key_and_may_load_only_from_here(path: str) -> None:
    answer = ask(make_context(), "GET", path)
    assert answer.status_code == 200 and answer.content
    assert answer.headers["content-security-policy"].startswith("default-src 'self';")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-type"].split(";")[0] in MEDIA_TYPES.values()


def test_what_the_page_asks_for_needs_the_key() -> None:
    assert ask(make_context(), "GET", "/ui/engine/state").status_code == 401
    assert ask(make_context(), "GET", "/ui/engine/state", headers={"x-api-key": "secret"}).status_code == 503


@pytest.mark.parametrize("path", ["/ui", "/ui/static/main.js", "/ui/engine/state"])
def test_the_page_can_be_switched_off(path: str) -> None:
    assert ask(make_context(disable_ui=True), "GET", path, keys=[]).status_code == 404


@pytest.mark.parametrize("name", ["page.py", "..%2fpage.py", "%2e%2e/page.py", "../page.py", ""])
def test_no_other_file_is_served(name: str) -> None:
    assert ask(make_context(), "GET", f"/ui/static/{name}", keys=[]).status_code == 404


def test_the_page_is_small_names_no_other_server_and_makes_no_markup_of_text() -> None:
    texts = [path.read_text() for path in FOLDER.iterdir()]
    assert sum(len(text.encode()) for text in texts) < 80_000
    for text in texts:
        assert not any(word in text for word in ("http://", "https://", "innerHTML", "outerHTML", "insertAdjacent"))


@pytest.fixture(scope="module")
def state_of_an_idle_server(server: RunningServer) -> Iterator[dict[str, Any]]:
    server.complete("ABCDEFGHIJ" * 5, max_tokens=2)
    assert server.becomes_idle()
    yield server.client.get("/ui/engine/state").json()


def test_the_state_tells_of_blocks_that_are_cached_after_an_answer(state_of_an_idle_server: dict[str, Any]) -> None:
    blocks = state_of_an_idle_server["snapshot"]["blocks"]
    assert blocks["num_free"] == blocks["num_blocks"] > 0
    assert any(state == 1 for state, _ in blocks["runs"]) and {state for state, _ in blocks["runs"]} <= {0, 1}
    assert state_of_an_idle_server["snapshot"]["requests"] == []


def test_the_state_has_totals_latencies_and_memory(state_of_an_idle_server: dict[str, Any]) -> None:
    assert state_of_an_idle_server["totals"]["vllm:generation_tokens"] >= 2
    assert sum(state_of_an_idle_server["latencies"]["ttft"]["counts"]) >= 1
    assert set(state_of_an_idle_server["resident_bytes"]) == {"server", "core"}
    assert all(size > 10 << 20 for size in state_of_an_idle_server["resident_bytes"].values())


def test_steps_are_told_once_somebody_looks(server: RunningServer, state_of_an_idle_server: dict[str, Any]) -> None:
    server.complete("ABC", max_tokens=3)
    time.sleep(2 * FRESH_S)
    steps = server.client.get("/ui/engine/state").json()["snapshot"]["steps"]
    numbers = [(step["num_prefill_tokens"], step["num_decode_tokens"]) for step in steps]
    assert numbers[numbers.index((3, 0)) :] in (
        [(3, 0), (0, 1), (0, 1)],
        [(3, 0), (0, 2)],
    )  # two decodes, maybe at once
    assert set(steps[-1]["seconds"]) == {"schedule", "execute", "sample", "update"}


def test_the_files_are_in_the_package() -> None:
    assert Path(FOLDER / "index.html").is_file() and "main.js" in NAMES
