"""Let a real Prometheus read a running server and answer every expression in deploy/.

    python scripts/prometheus_check.py http://127.0.0.1:8000

Uses ``prometheus`` and ``promtool`` from the PATH, or else Debian's package, unpacked into a temporary folder. Fails if
a rule is refused, or if an expression of the dashboard has no answer. Give the server some requests first.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
START_TIMEOUT_S = 30.0
# As a dashboard would fill them in.
VARIABLES = {"$__rate_interval": "1m", "$__range": "5m", "$model": ".*"}


def main() -> int:
    """Check everything; 1 where something has no answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="address of a running server")
    parser.add_argument("--port", type=int, default=9099, help="port for Prometheus (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long it collects (default: %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server, tool = find_tools(folder)
        subprocess.run([tool, "check", "rules", DEPLOY / "prometheus" / "alerts.yml"], check=True)
        config = write_config(folder, urllib.parse.urlsplit(args.url).netloc)
        with running(server, config, folder / "data", args.port) as prometheus:
            time.sleep(args.seconds)
            return report(prometheus)


def find_tools(folder: Path) -> tuple[str, str]:
    """Paths of prometheus and promtool."""
    if not (found := shutil.which("prometheus")):
        subprocess.run(["apt-get", "download", "prometheus"], cwd=folder, check=True)
        [package] = folder.glob("prometheus_*.deb")
        subprocess.run(["dpkg", "-x", package, folder], check=True)
        found = str(folder / "usr" / "bin" / "prometheus")
    return found, str(Path(found).with_name("promtool"))


def write_config(folder: Path, target: str) -> Path:
    """A configuration like the one in deploy/, for that target and in a hurry."""
    config = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    config = config.replace("octavo:8000", target).replace("15s", "1s").replace("5s", "1s")
    config = config.replace("alerts.yml", str(DEPLOY / "prometheus" / "alerts.yml"))
    path = folder / "prometheus.yml"
    path.write_text(config)
    return path


class running:
    """A Prometheus process; the value is the address of its API."""

    def __init__(self, server: str, config: Path, data: Path, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        options = [f"--config.file={config}", f"--storage.tsdb.path={data}", f"--web.listen-address=127.0.0.1:{port}"]
        self._process = subprocess.Popen([server, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self) -> str:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                urllib.request.urlopen(f"{self._url}/-/ready", timeout=2).close()
                return self._url
            except (urllib.error.URLError, ConnectionError):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)


def report(prometheus: str) -> int:
    """Ask every expression; print what has no answer."""
    num_asked, silent = 0, []
    for expression in dashboard_expressions():
        num_asked += 1
        if not ask(prometheus, expression):
            silent.append(expression)
    states = api(f"{prometheus}/api/v1/rules")["groups"][0]["rules"]
    unwell = [rule["name"] for rule in states if rule["health"] != "ok"]
    print(f"{num_asked} expressions asked, {len(silent)} without an answer; {len(states)} rules, {len(unwell)} unwell")
    for each in (*silent, *unwell):
        print(f"  {each}", file=sys.stderr)
    return 1 if silent or unwell else 0


def dashboard_expressions() -> Iterator[str]:
    """All expressions of the dashboard, with its variables filled in."""
    for panel in json.loads((DEPLOY / "grafana" / "octavo.json").read_text())["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            yield expression


def ask(prometheus: str, expression: str) -> list[Any]:
    """The series that answer an expression."""
    result: list[Any] = api(f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")["result"]
    return result


def api(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)["data"]


if __name__ == "__main__":
    sys.exit(main())
