"""From the first answer to the exit code."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path

import httpx
import psutil
import pytest

from octavo.config.server import ServerConfig
from octavo.server.launch import address_of, bind, read_api_keys, read_tls
from octavo.server.startup_responder import StartupResponder
from octavo.words.errors import ConfigError, ListenError
from tests.server.conftest import RunningServer


def test_a_bound_port_says_loading_at_once() -> None:
    with bind(ServerConfig(port=0)) as listener:
        responder = StartupResponder(listener)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            health = httpx.get(f"{url}/health", headers={"X-Request-Id": "mine"})
            assert (health.status_code, health.json(), health.headers["retry-after"]) == (
                503,
                {"status": "loading"},
                "1",
            )
            assert health.headers["x-request-id"] == "mine"
            assert httpx.get(f"{url}/live").status_code == 200
            answer = httpx.post(f"{url}/v1/completions", json={"prompt": "a" * 100_000})
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "server_error")
        finally:
            responder.stop()
        # The socket still listens: its successor will answer who connects now.
        with socket.create_connection(listener.getsockname(), timeout=5):
            pass


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> ServerConfig:
    """The options of a server with a certificate of its own for this machine's address."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-keyout", key, "-out", certificate, "-subj", "/CN=octavo", "-addext", "subjectAltName=IP:127.0.0.1",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return ServerConfig(port=0, ssl_keyfile=str(key), ssl_certfile=str(certificate))


def test_https_from_the_first_answer_to_the_last(certificate: ServerConfig, succ: Path, tmp_path: Path) -> None:
    trust = ssl.create_default_context(cafile=certificate.ssl_certfile)
    with bind(certificate) as listener:
        responder = StartupResponder(listener, read_tls(certificate))
        assert httpx.get(f"{address_of(listener, certificate)}/health", verify=trust).status_code == 503
        responder.stop()
    files = ("--ssl-keyfile", str(certificate.ssl_keyfile), "--ssl-certfile", str(certificate.ssl_certfile))
    server = RunningServer(succ, tmp_path / "log", *files, verify=trust)
    try:
        assert server.url.startswith("https://")
        server.wait_until_ready()
        assert server.is_alive()
        with pytest.raises(httpx.TransportError):
            httpx.get(server.url.replace("https", "http"))
    finally:
        server.stop()


def test_half_of_a_certificate_and_a_wrong_one_are_refused(certificate: ServerConfig) -> None:
    with pytest.raises(ConfigError, match="both"):
        read_tls(ServerConfig(ssl_keyfile=certificate.ssl_keyfile))
    for wrong in (certificate.ssl_keyfile, "/nowhere.pem"):
        with pytest.raises(ConfigError, match="cannot be used"):
            read_tls(ServerConfig(ssl_keyfile=certificate.ssl_keyfile, ssl_certfile=wrong))


def test_a_client_that_says_nothing_delays_nobody_for_long() -> None:
    with bind(ServerConfig(port=0)) as listener:
        responder = StartupResponder(listener)
        with socket.create_connection(listener.getsockname(), timeout=5):
            began = time.monotonic()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            assert httpx.get(f"{url}/health", timeout=30).status_code == 503
            assert time.monotonic() - began < 20
        responder.stop()


def test_a_port_that_is_taken_is_said_before_anything_is_loaded(succ: Path, tmp_path: Path) -> None:
    with bind(ServerConfig(port=0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ListenError, match=f"port {port}.*--port"):
            bind(ServerConfig(port=port))
        with pytest.raises(RuntimeError, match=f"cannot listen on 127.0.0.1 port {port}"):
            RunningServer(succ, tmp_path / "log", "--port", str(port))


def test_a_unix_socket_is_only_the_users(tmp_path: Path) -> None:
    path = tmp_path / "octavo.sock"
    with bind(ServerConfig(uds=str(path))):
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(ListenError):
            bind(ServerConfig(uds=str(path)))


def test_keys_come_from_a_flag_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("two\n\nthree\n")
    assert read_api_keys(ServerConfig(api_key="zero, one", api_key_file=str(file))) == ["zero", "one", "two", "three"]
    assert read_api_keys(ServerConfig()) == []
    file.write_text("\n")
    for config in (ServerConfig(api_key=" "), ServerConfig(api_key_file=str(file)), ServerConfig(api_key_file="/no")):
        with pytest.raises(ConfigError):
            read_api_keys(config)


def test_a_model_that_cannot_be_loaded_ends_the_server(tmp_path: Path) -> None:
    server = RunningServer(tmp_path, tmp_path / "log")
    assert server.process.wait(60) == 1
    assert str(tmp_path) in server.log.read_text()
    server.stop()


def test_the_front_end_maps_no_libtorch_and_listens_here_only(server: RunningServer) -> None:  # SE02
    front = psutil.Process(server.process.pid)
    (core,) = (child for child in front.children() if "core_proc" in " ".join(child.cmdline()))
    assert "torch" not in Path(f"/proc/{front.pid}/maps").read_text()
    assert "torch" in Path(f"/proc/{core.pid}/maps").read_text()
    listening = [
        each for process in (front, core) for each in process.net_connections("inet") if each.status == "LISTEN"
    ]
    assert [each.laddr.ip for each in listening] == ["127.0.0.1"]
