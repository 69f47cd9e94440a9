"""The page in a real browser, which is driven over the WebDriver protocol."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import RunningServer

pytestmark = pytest.mark.skipif(
    not (shutil.which("chromedriver") and shutil.which("chromium")),
    reason="no browser: apt-get install chromium chromium-driver",
)
OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,820"]


class Browser:
    """One session of a browser."""

    def __init__(self, port: int) -> None:
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
        wanted = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": {"args": OPTIONS}}}
        self._wait_for_driver()
        self._session = self._send("POST", "/session", {"capabilities": wanted})["sessionId"]

    def _wait_for_driver(self) -> None:
        deadline = time.monotonic() + 20
        while True:
            try:
                self._client.get("/status")
                return
            except httpx.TransportError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._client.request(method, path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["value"]

    def open(self, url: str) -> None:
        self._send("POST", f"/session/{self._session}/url", {"url": url})

    def run(self, script: str, *args: Any) -> Any:
        return self._send("POST", f"/session/{self._session}/execute/sync", {"script": script, "args": list(args)})

    def wait_for(self, script: str, is_right: Callable[[Any], bool] = bool, seconds: float = 30) -> Any:
        deadline = time.monotonic() + seconds
        while not is_right(value := self.run(f"return {script}")):
            assert time.monotonic() < deadline, (script, value)
            time.sleep(0.05)
        return value

    def keep_screenshot(self, name: str) -> None:
        """Write docs/images/NAME.png where OCTAVO_SCREENSHOTS asks for it."""
        if folder := os.environ.get("OCTAVO_SCREENSHOTS"):
            image = base64.b64decode(self._send("GET", f"/session/{self._session}/screenshot"))
            Path(folder, f"{name}.png").write_bytes(image)

    def close(self) -> None:
        self._send("DELETE", f"/session/{self._session}")
        self._client.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        browser = Browser(port)
        try:
            yield browser
        finally:
            browser.close()
    finally:
        driver.terminate()
        driver.wait(10)


def held(runs: str) -> int:
    return sum(length for state, length in json.loads(runs) if state >= 2)


def test_the_cells_of_the_page_follow_a_request(server: RunningServer, browser: Browser) -> None:
    assert server.becomes_idle()
    browser.open(f"{server.url}/ui#engine")
    runs = "document.getElementById('blocks').dataset.runs || '[]'"
    browser.wait_for(runs, lambda found: found != "[]" and held(found) == 0)
    is_enough = threading.Event()

    def occupy() -> None:
        body = {"prompt": "A" * 100, "max_tokens": 900, "ignore_eos": True, "stream": True}
        while not is_enough.is_set():
            with server.client.stream("POST", "/v1/completions", json=body) as answer:
                for _ in answer.iter_lines():
                    if is_enough.is_set():
                        break

    thread = threading.Thread(target=occupy)
    thread.start()
    try:
        browser.wait_for(runs, lambda found: held(found) > 0)
        browser.wait_for("document.querySelectorAll('#requests tr').length", lambda rows: rows == 1)
        browser.wait_for("document.getElementById('steps-text').textContent", lambda text: "step" in text)
        browser.keep_screenshot("ui-engine")
    finally:
        is_enough.set()
        thread.join(60)
    browser.wait_for(runs, lambda found: held(found) == 0)
    browser.wait_for("document.querySelectorAll('#requests tr').length", lambda rows: rows == 0)


def test_an_answer_streams_into_the_chat_with_its_figures(server: RunningServer, browser: Browser) -> None:
    browser.open("about:blank")
    browser.open(f"{server.url}/ui")
    browser.wait_for("document.getElementById('model').value")
    browser.run(
        "document.getElementById('s-temperature').value = 0; document.getElementById('s-max_tokens').value = 20"
    )
    browser.run("document.getElementById('prompt').value = 'ABC'; document.getElementById('ask').requestSubmit()")
    said = "document.querySelector('.assistant .body')?.textContent"
    browser.wait_for(
        "document.querySelector('.assistant .figures span')?.textContent", lambda text: "cached" in (text or "")
    )
    asked = json.loads(browser.run("return document.getElementById('raw').textContent"))
    whole = server.client.post("/v1/chat/completions", json={**asked, "stream": False, "stream_options": None}).json()
    assert browser.wait_for(said).strip() == whole["choices"][0]["message"]["content"].strip()
    browser.run("document.querySelector('.assistant .figures button').click()")
    assert browser.run("return document.querySelectorAll('.tokens span').length") > 0
    assert "%" in browser.run("return document.querySelector('.tokens span').title")
    assert "of 1024 tokens" in browser.run("return document.getElementById('context-text').textContent")
    browser.keep_screenshot("ui-chat")


def ask(browser: Browser, text: str, *, max_tokens: int, system: str = "") -> None:
    """Say something in a new chat, greedily."""
    browser.wait_for("document.getElementById('model').value")
    browser.run(
        """document.getElementById('new').click();
        for (const [id, value] of Object.entries(arguments[0])) document.getElementById(id).value = value;
        document.getElementById('ask').requestSubmit();""",
        {"s-temperature": 0, "s-max_tokens": max_tokens, "system": system, "prompt": text},
    )


def test_an_answer_can_be_stopped(server: RunningServer, browser: Browser) -> None:
    browser.open(f"{server.url}/ui")
    ask(browser, "\N{LLAMA}", max_tokens=900)  # to which this model has no end
    said = "document.querySelector('.assistant .body')?.textContent"
    browser.wait_for(said)
    browser.run("document.getElementById('stop').click()")
    browser.wait_for(
        "document.querySelector('.assistant .figures span')?.textContent", lambda text: "stopped" in (text or "")
    )
    assert set(browser.run(f"return {said}")) == {"\N{LLAMA}"}
    assert browser.run("return document.getElementById('stop').hidden")
    assert server.becomes_idle(5)


@pytest.mark.parametrize("how", ["curl", "python"])
def test_a_request_that_was_copied_asks_the_same(server: RunningServer, browser: Browser, how: str) -> None:
    browser.open(f"{server.url}/ui")
    ask(browser, "it's \"A", max_tokens=4, system="Be brief.")
    browser.wait_for(
        "document.querySelector('.assistant .figures span')?.textContent", lambda text: "cached" in (text or "")
    )
    assert json.loads(browser.run("return document.getElementById('raw').textContent"))["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "it's \"A"},
    ]
    browser.run("navigator.clipboard.writeText = async (text) => { window.copied = text; };")
    browser.run(f"document.getElementById('{how}').click()")
    copied = browser.wait_for("window.copied")
    command = ["bash", "-c", copied] if how == "curl" else [sys.executable, "-c", copied]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    said = re.findall(r'"content":"([A-Z]*)"', done.stdout) if how == "curl" else [done.stdout.strip()]
    assert "".join(said) == "BCDE"


def test_where_the_browser_forbids_to_copy_the_text_is_shown(server: RunningServer, browser: Browser) -> None:
    browser.open(f"{server.url}/ui")
    browser.wait_for("document.getElementById('model').value")
    browser.run("navigator.clipboard.writeText = async () => { throw new Error('no'); };")
    browser.run("document.getElementById('curl').click()")
    assert browser.wait_for("document.getElementById('notice').textContent").startswith("The browser does not let")
    assert browser.run("return document.getElementById('raw').textContent").startswith("curl ")


def test_what_a_model_writes_is_never_markup(server: RunningServer, browser: Browser) -> None:
    browser.open(f"{server.url}/ui")
    text = (
        "# a <b>b</b>\\n\\n**c** `d` <img src=x onerror='window.hacked=1'>\\n\\n- e\\n\\n"
        "```html\\n<script>window.hacked=1</script>\\n```"
    )
    browser.run(
        f"""window.made = undefined;
        import(new URL('ui/static/markdown.js', document.baseURI)).then((module) => {{
          const box = document.createElement('div');
          box.append(module.render("{text}"));
          document.body.append(box);
          window.made = [...box.querySelectorAll('*')].map((each) => each.localName);
        }});"""
    )
    assert browser.wait_for("window.made") == ["h3", "p", "strong", "code", "ul", "li", "pre"]
    assert browser.run("return window.hacked ?? null") is None
