"""The core in a background process, on the simulated executor: no torch, no weights, about half a second a start."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from octavo.config.engine_config import EngineConfig
from octavo.config.flat import config_from_kwargs
from octavo.engine import wire
from octavo.engine.client import EngineCoreClient, InprocClient, make_client
from octavo.engine.process_client import ProcessClient
from octavo.words.errors import EngineDeadError, EngineError, EngineStartError
from octavo.words.messages import FinishReason
from tests import waiting
from tests.fakes import make_message
from tests.held import held

soon = partial(waiting.soon, seconds=5.0)


def simulated(**options: Any) -> EngineConfig:
    return config_from_kwargs(model="simulated", distributed_executor_backend="simulated", plugins="", **options)


def answer(client: EngineCoreClient, *request_ids: str) -> dict[str, list[int]]:
    """The tokens of these requests, waited for."""
    tokens: dict[str, list[int]] = {}
    finished: set[str] = set()
    while not finished.issuperset(request_ids):
        outputs = client.get_output()
        assert outputs is not None
        for output in outputs.outputs:
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            if output.finish_reason is not None:
                finished.add(output.request_id)
    return tokens


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.fixture(scope="module")
def shared_client() -> Iterator[ProcessClient]:
    client = ProcessClient(simulated(), incarnation=4)
    yield client
    client.shutdown()


@pytest.fixture
def client() -> Iterator[ProcessClient]:
    client = ProcessClient(simulated())
    yield client
    client.shutdown()


def test_a_core_that_is_being_started_can_be_stopped() -> None:
    """A client that is shut down at once meets its core before, while and after the process is made."""
    for _ in range(5):
        client = ProcessClient(simulated(), wait=False)
        stopping = threading.Thread(target=client.shutdown, daemon=True)
        stopping.start()
        stopping.join(20)
        assert not stopping.is_alive()
        assert is_gone(client.pid)


def test_background_and_in_process_cores_answer_alike(shared_client: ProcessClient) -> None:
    inproc = InprocClient(simulated())
    for client in (inproc, shared_client):
        for number in range(3):
            client.add_request(make_message(f"r{number}", 40, max_tokens=5 + number, ignore_eos=True))
    expected = answer(inproc, "r0", "r1", "r2")
    assert [len(tokens) for tokens in expected.values()] == [5, 6, 7]
    assert answer(shared_client, "r0", "r1", "r2") == expected


def test_the_fitted_values_come_with_ready(shared_client: ProcessClient) -> None:
    info = shared_client.info
    assert info.incarnation == 4
    assert info.max_model_len == 8192
    assert info.num_kv_tokens == info.kv_cache_config.num_usable_blocks // 256 * 8192 + (
        info.kv_cache_config.num_usable_blocks % 256 * 32
    )
    assert list(info.phases)[:3] == ["read headers", "plan", "plugins"]


def test_calls_return_typed_answers_and_errors(shared_client: ProcessClient) -> None:
    assert shared_client.call("stats").num_running == 0
    assert shared_client.call("reset_prefix_cache") is True
    shared_client.check_health()
    with pytest.raises(EngineError, match="call 'stat' failed: UnknownOptionError"):
        shared_client.call("stat")
    with pytest.raises(EngineError, match="simulated executor has no workers"):
        shared_client.call("collective_rpc", "anything", 1)
    with pytest.raises(TypeError):
        shared_client.call("collective_rpc", object())
    shared_client.check_health()


def test_an_in_process_call_raises_the_same_errors() -> None:
    client = make_client(simulated(), multiprocess=False)
    with pytest.raises(EngineError, match="call 'stat' failed: UnknownOptionError"):
        client.call("stat")
    client.shutdown()
    with pytest.raises(EngineDeadError, match="was shut down"):
        client.call("stats")


def test_many_threads_may_call_at_once(shared_client: ProcessClient) -> None:
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(shared_client.call("stats").kv_cache_usage)) for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [0.0] * 16


def test_an_aborted_request_ends_and_frees_its_blocks(shared_client: ProcessClient) -> None:
    shared_client.add_request(make_message("long", 40, max_tokens=8000, ignore_eos=True))
    shared_client.get_output()
    shared_client.abort_requests(["long", "unknown"])
    assert soon(lambda: shared_client.call("stats").num_running == 0)
    assert shared_client.call("stats").kv_cache_usage == 0.0
    while shared_client.get_output(blocking=False) is not None:
        pass
    shared_client.add_request(make_message("next", 4, max_tokens=1))
    assert set(answer(shared_client, "next")) == {"next"}


def test_a_request_added_and_aborted_at_once_never_runs_on(shared_client: ProcessClient) -> None:
    for number in range(20):
        shared_client.add_request(make_message(f"short-lived-{number}", 40, max_tokens=8000, ignore_eos=True))
        shared_client.abort_requests([f"short-lived-{number}"])
    assert soon(lambda: shared_client.call("stats").num_running == 0)
    assert shared_client.call("stats").num_waiting == 0
    while shared_client.get_output(blocking=False) is not None:
        pass


def test_an_idle_core_is_blocked_not_spinning(shared_client: ProcessClient) -> None:
    core = psutil.Process(shared_client.pid)
    assert soon(lambda: shared_client.call("stats").num_running == 0)
    before = core.cpu_times()
    time.sleep(0.5)
    after = core.cpu_times()
    assert (after.user + after.system) - (before.user + before.system) <= 0.05


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.kill, (os.getpid(), signal.SIGKILL)


GARBAGE = [
    b"",
    b"\x00" * 64,
    os.urandom(4096),
    pickle.dumps(_Bomb()),
    wire.encode(wire.Dead(99, "words of another incarnation")),
]


def test_garbage_on_the_sockets_is_ignored(shared_client: ProcessClient) -> None:
    """Case SE01, and words of a core of another incarnation."""
    folder = shared_client._folder
    with zmq.Context() as context:
        for kind, name in ((zmq.DEALER, "requests"), (zmq.PUSH, "outputs")):
            with context.socket(kind) as intruder:
                intruder.connect(folder.address(name))
                for blob in GARBAGE:
                    intruder.send(blob)
                    intruder.send_multipart([b"core", blob])
                intruder.close(linger=500)
    time.sleep(0.1)
    shared_client.check_health()
    shared_client.add_request(make_message("after", 4, max_tokens=2))
    assert len(answer(shared_client, "after")["after"]) <= 2


def test_sockets_are_unix_domain_sockets_in_a_private_folder(shared_client: ProcessClient) -> None:
    """Case SE02."""
    folder = shared_client._folder.path
    assert sorted(entry.name for entry in folder.iterdir()) == ["lock", "outputs", "requests"]
    assert folder.stat().st_mode & 0o077 == 0
    for pid in (os.getpid(), shared_client.pid):
        assert [c for c in psutil.Process(pid).net_connections("inet") if c.status == psutil.CONN_LISTEN] == []


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_sent_to_every_process_at_once_leaves_the_core_to_its_parent(
    shared_client: ProcessClient, signal_number: signal.Signals
) -> None:
    os.kill(shared_client.pid, signal_number)
    time.sleep(0.1)
    shared_client.check_health()


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_core_raises_in_every_waiter(client: ProcessClient, signal_number: signal.Signals) -> None:
    client.add_request(make_message("a", 4, max_tokens=1))
    answer(client, "a")
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            client.get_output()
        except EngineDeadError as error:
            errors.append(error)

    waiters = [threading.Thread(target=wait) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    os.kill(client.pid, signal_number)
    for waiter in waiters:
        waiter.join(20)
    assert len(errors) == 3
    for error in errors:
        assert f"was ended by {signal_number.name}" in str(error).splitlines()[-1]
    for attempt in (lambda: client.add_request(make_message("b")), lambda: client.call("stats"), client.check_health):
        with pytest.raises(EngineDeadError, match=signal_number.name):
            attempt()
    assert soon(lambda: is_gone(client.pid))
    client.shutdown()
    assert not client._folder.path.exists()


def test_a_core_that_is_stopped_ends_with_its_client(client: ProcessClient) -> None:
    pid = client.pid
    os.kill(pid, signal.SIGSTOP)
    client.shutdown()
    assert is_gone(pid)


def test_a_core_that_cannot_be_built_is_a_start_error_with_the_cause_last() -> None:
    before = psutil.Process().children()
    config = config_from_kwargs(
        model="simulated", distributed_executor_backend="simulated", max_model_len=100_000, plugins=""
    )
    began = time.monotonic()
    with pytest.raises(EngineStartError) as caught:
        ProcessClient(config)
    assert time.monotonic() - began < 30
    assert str(caught.value).splitlines()[-1].startswith("ConfigError: max_model_len=100000 cannot be had")
    assert psutil.Process().children() == before


def test_five_rounds_leave_nothing_behind() -> None:
    ProcessClient(simulated()).shutdown()
    before = held()
    folders = []
    for _ in range(5):
        client = ProcessClient(simulated())
        folders.append(client._folder.path)
        client.add_request(make_message("a", 4, max_tokens=1))
        answer(client, "a")
        client.shutdown()
        client.shutdown()
    assert held() == before
    assert not [folder for folder in folders if folder.exists()]


START_AND_WAIT = """
import sys, time
from octavo.config.flat import config_from_kwargs
from octavo.engine.process_client import ProcessClient
client = ProcessClient(config_from_kwargs(model="simulated", distributed_executor_backend="simulated", plugins=""))
print(client.pid, client._folder.path, flush=True)
{then}
"""


def start_a_parent(then: str) -> tuple[subprocess.Popen[str], int, Path]:
    parent = subprocess.Popen(
        [sys.executable, "-c", START_AND_WAIT.format(then=then)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    core_pid, folder = parent.stdout.readline().split()
    return parent, int(core_pid), Path(folder)


def test_a_killed_parent_leaves_no_core_and_the_next_start_removes_its_sockets() -> None:
    """Case CO02."""
    parent, core_pid, folder = start_a_parent("time.sleep(60)")
    parent.kill()
    parent.communicate()
    assert soon(lambda: is_gone(core_pid))
    assert folder.is_dir()
    ProcessClient(simulated()).shutdown()
    assert not folder.exists()


@pytest.mark.parametrize("then", ["", "raise SystemExit(3)", "import os, signal; os.kill(os.getpid(), signal.SIGINT)"])
def test_a_parent_that_ends_without_closing_takes_everything_with_it(then: str) -> None:
    parent, core_pid, folder = start_a_parent(then)
    parent.communicate(timeout=20)
    assert soon(lambda: is_gone(core_pid))
    assert not folder.exists()


def test_the_core_lives_on_when_the_thread_that_made_the_client_ends() -> None:
    made: list[ProcessClient] = []
    thread = threading.Thread(target=lambda: made.append(ProcessClient(simulated())))
    thread.start()
    thread.join()
    [client] = made
    time.sleep(0.2)
    client.add_request(make_message("a", 4, max_tokens=1))
    assert len(answer(client, "a")["a"]) == 1
    client.shutdown()


FORK = """
import os, sys, warnings
warnings.simplefilter("ignore")
from octavo.config.flat import config_from_kwargs
from octavo.engine.process_client import ProcessClient
client = ProcessClient(config_from_kwargs(model="simulated", distributed_executor_backend="simulated", plugins=""))
pid = os.fork()
if pid == 0:
    sys.exit(0)  # runs its copies of our exit handlers
os.waitpid(pid, 0)
client.check_health()
print("alive")
"""


def test_a_fork_of_the_parent_does_not_stop_the_core() -> None:
    result = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (0, "alive\n"), result.stderr


FORK_AND_USE = """
import os
from octavo.config.flat import config_from_kwargs
from octavo.engine.process_client import ProcessClient
from octavo.words.errors import EngineError
client = ProcessClient(config_from_kwargs(model="simulated", distributed_executor_backend="simulated", plugins=""))
pid = os.fork()
if pid == 0:
    for use in (client.get_output, client.check_health):
        try:
            use()
        except EngineError as error:
            print("forked" in str(error), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
client.check_health()
print("alive")
"""


def test_a_fork_that_uses_the_client_is_told_at_once_and_harms_nobody() -> None:
    result = subprocess.run(
        [sys.executable, "-c", FORK_AND_USE], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stdout) == (0, "True\nTrue\nalive\n"), result.stderr


def test_two_steps_in_flight_in_the_background() -> None:
    client = ProcessClient(simulated(async_scheduling=True))
    assert client.info.plan.max_steps_in_flight == 2
    for number in range(4):
        client.add_request(make_message(f"r{number}", 40, max_tokens=6, ignore_eos=True))
    assert [len(tokens) for tokens in answer(client, *(f"r{n}" for n in range(4))).values()] == [6] * 4
    assert client.call("reset_prefix_cache") is True
    client.shutdown()


def test_an_error_output_crosses_the_wire(shared_client: ProcessClient) -> None:
    shared_client.add_request(make_message("huge", 9000))
    outputs = shared_client.get_output()
    assert outputs is not None
    [output] = outputs.outputs
    assert output.finish_reason is FinishReason.ERROR
    assert output.error is not None and "8192" in output.error
