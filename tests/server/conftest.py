"""A real server process on the model that counts, for every test of this folder."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.server.spoken import SPOKEN, TOKENS, Spoken
from tests.succ import ENDS_STRINGS, make_succ
from tests.waiting import soon

START_TIMEOUT_S = 120
MODEL = "succ"
THINKING_NAMES = ("deepseek-r", "claude-sonnet-4")
OPTIONS = ("--max-model-len", "1024", "--kv-cache-memory-bytes", "16MiB", "--served-model-name", MODEL)

TOOL_TEMPLATE = (
    "{% set first = messages[0].content %}{% if first == 'raise' %}{{ raise_exception('roles must alternate') }}"
    "{% elif first == 'divide' %}{{ 1 / 0 }}{% elif first == 'undefined' %}{{ nothing.at.all }}{% endif %}"
    "{% if tools %}{{ tools | tojson }} Call as <tool_call>{...}</tool_call>{% endif %}"
    "{% for message in messages %}{{ message.reasoning_content }}{{ message.content or '' }}"
    "{% for call in message.tool_calls %}{{ call.function.name }}{% endfor %}{% endfor %}"
    "{{ reasoning_effort }}"
    "{% set thinks = enable_thinking if enable_thinking is defined else thinking %}"
    "{% if thinks %}<think>{% elif thinks is defined %}<think></think>{% endif %}"
)
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Zürich"]}},
    "required": ["city"],
    "additionalProperties": False,
}
"""Parameters of a tool."""
FORECAST = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Zürich"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
"""Parameters that a call of ``wrong_call_server`` does not hold to, unless it must."""
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


class RunningServer:
    """One ``octavo serve`` process; ``url`` is known as soon as it listens."""

    def __init__(
        self, model: Path | str, log: Path, *options: str, verify: ssl.SSLContext | bool = True, optimised: bool = False
    ) -> None:
        command = [sys.executable, "-m", "octavo.cli.main", "serve", str(model), "--port", "0", *OPTIONS, *options]
        self.log = log
        environment = {**os.environ, "PYTHONOPTIMIZE": "1"} if optimised else None
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, start_new_session=True, env=environment
            )
        self.url = self._find_url()
        self.client = httpx.Client(base_url=self.url, timeout=60, verify=verify)

    def _find_url(self) -> str:
        while self.process.poll() is None:
            if found := re.search(r"Listening on (https?://\S+);", self.log.read_text()):
                return found[1]
            time.sleep(0.01)
        raise RuntimeError(f"the server ended: {self.log.read_text()}")

    def wait_until_ready(self) -> None:
        """Return when /health says so."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if self.client.get("/health").status_code == 200:
                    return
            time.sleep(0.05)
        raise RuntimeError(f"the server did not start: {self.log.read_text()}")

    def complete(self, prompt: Any = "A", **fields: Any) -> httpx.Response:
        """A completion, greedy unless it is said otherwise."""
        return self.client.post("/v1/completions", json={"prompt": prompt, "temperature": 0, **fields})

    def is_alive(self) -> bool:
        """Whether it is healthy and still counts."""
        healthy = self.client.get("/health", timeout=10).status_code == 200
        return healthy and self.complete("A", max_tokens=4).json()["choices"][0]["text"] == "BCDE"

    def metric(self, name: str) -> float:
        """The sum of a metric's values on /metrics."""
        values = re.findall(rf"^{re.escape(name)}{{.*}} (\S+)$", self.client.get("/metrics").text, re.MULTILINE)
        assert values, name
        return sum(map(float, values))

    def is_idle(self) -> bool:
        """Whether nothing runs, waits or holds blocks."""
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        return all(self.metric(name) == 0 for name in names)

    def becomes_idle(self, seconds: float = 10.0) -> bool:
        """Whether that comes true within some seconds."""
        return soon(self.is_idle, seconds)

    def stop(self, timeout_s: float = 20.0) -> int:
        """End it as a user would; its exit code."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


@contextlib.contextmanager
def serving(model: Path | str, log: Path, *options: str, **settings: Any) -> Iterator[RunningServer]:
    """A server from when it is ready to its end."""
    server = RunningServer(model, log, *options, **settings)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def server(succ: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A ready server, in a Python that skips asserts: no check may be one (SE10). Tests leave it as they found it."""
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(
        succ, log, "--dtype", "float32", "--disable-access-log", "--enable-prompt-embeds", optimised=True
    ) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    """OpenAI's own client of the server that the module uses."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def written(text: str) -> dict[str, Any]:
    """Fields of a request that make the model write this."""
    return {"structured_outputs": {"choice": [text]}}


@pytest.fixture(scope="session")
def tool_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One whose template shows tools, may open thoughts and may fail; its names are those of models that think."""
    with serving_tools(tmp_path_factory.mktemp("tools")) as server:
        yield server


@pytest.fixture(scope="session")
def wrong_call_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The same, but its model writes a call of the tool ``weather`` that is wrong."""
    processor = "tests.own_logits_processors:WantsWrongCall"
    with serving_tools(tmp_path_factory.mktemp("wrong"), "--logits-processors", processor) as server:
        yield server


def serving_tools(folder: Path, *options: str) -> contextlib.AbstractContextManager[RunningServer]:
    """A server of the model that counts with TOOL_TEMPLATE, whose texts in JSON end with the alphabet."""
    (folder / "template.jinja").write_text(TOOL_TEMPLATE)
    names = ",".join((MODEL, *THINKING_NAMES))
    own = (
        "--chat-template", str(folder / "template.jinja"), "--served-model-name", names,
        "--max-model-len", "4096",
    )  # fmt: skip
    return serving(make_succ(folder / "succ", second_after=ENDS_STRINGS), folder / "log", *own, *options)


@pytest.fixture(scope="session", params=SPOKEN)
def format_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Spoken, RunningServer]]:
    """A server of a model that writes calls in this format, with markup that is special tokens."""
    spoken: Spoken = SPOKEN[request.param]
    folder = tmp_path_factory.mktemp("format")
    (folder / "template.jinja").write_text(spoken.template)
    model = make_succ(folder / "succ", second_after=ENDS_STRINGS, special_tokens=TOKENS)
    options = ("--chat-template", str(folder / "template.jinja"), *spoken.options)
    with serving(model, folder / "log", *options) as server:
        yield spoken, server
