"""LLM with the core in a background process, and whole scripts, as users run them. Real workers on SUCC."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from octavo.frontend.llm import LLM
from octavo.words.errors import CheckpointError, EngineDeadError, EngineError, EngineStartError
from octavo.words.sampling_params import SamplingParams
from tests.succ import HIDDEN_SIZE, make_succ

REPOSITORY = Path(__file__).parents[2]
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# The tiny model gains nothing from threads, and shares the machine's few CPUs with other tests.
SMALL: dict[str, Any] = {"num_threads": 1}
GREEDY = SamplingParams(temperature=0.0, max_tokens=40)


@pytest.fixture(scope="module")
def llm(succ: Path) -> Iterator[LLM]:
    extension = "tests.engine.counting_extension:CountingExtension"
    # A profile has the parts of each step.
    options = {"max_model_len": 256, "block_size": 16, "max_burst_ms": 0, "worker_extension_cls": extension}
    with LLM(str(succ), **SMALL, **options, multiprocess=True) as llm:
        yield llm


def run_script(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script from its own folder, as a user would, in an environment that says offline."""
    script = folder / "script.py"
    script.write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_in_process_and_background_give_the_same_outputs(llm: LLM, succ: Path) -> None:
    prompts = ["A", "w", "K" * 40, "caf\u00e9", "z"]
    params = [
        GREEDY,
        GREEDY.clone(logprobs=2),
        SamplingParams(temperature=1.5, seed=5, max_tokens=20, logprobs=1),
        SamplingParams(n=2, temperature=2.0, seed=7, max_tokens=9),
        GREEDY.clone(prompt_logprobs=1, ignore_eos=True),
    ]
    with LLM(str(succ), **SMALL, max_model_len=256, block_size=16) as inproc:
        expected = inproc.generate(prompts, params, use_tqdm=False)
    found = llm.generate(prompts, params, use_tqdm=False)
    for one, other in zip(found, expected, strict=True):
        assert one.outputs == other.outputs
        assert one.prompt_logprobs == other.prompt_logprobs
    assert found[0].outputs[0].text == ALPHABET[1:]


def test_prefix_cache_and_workers_are_reached_in_the_background(llm: LLM) -> None:
    prompt = ALPHABET * 3
    llm.generate(prompt, GREEDY, use_tqdm=False)
    [warm] = llm.generate(prompt, GREEDY, use_tqdm=False)
    assert warm.num_cached_tokens == 64
    assert llm.reset_prefix_cache() is True
    assert llm.collective_rpc("check_health") == [None]
    assert llm.collective_rpc("extension.count_parameters", "norm") == [5 * HIDDEN_SIZE]
    with pytest.raises(EngineError, match=r"extension\.count_parameters"):
        llm.collective_rpc("count_parameters", "norm")


NO_MAIN_GUARD = """
import sys
print("started", file=sys.stderr)
from octavo import LLM, SamplingParams
llm = LLM(sys.argv[1], multiprocess=True, max_model_len=64, num_threads=1)
print(llm.generate("A", SamplingParams(temperature=0, max_tokens=40))[0].outputs[0].text)
"""


def test_a_profile_of_a_background_core_has_every_part_of_it(llm: LLM) -> None:
    llm.start_profile()
    llm.generate("ABC", SamplingParams(temperature=0.0, max_tokens=3), use_tqdm=False)
    spans = llm.stop_profile()
    tracks = {
        "schedule": "core",
        "execute": "core",
        "sample": "core",
        "update": "core",
        "prepare": "worker",
        "forward": "worker",
    }
    assert {span.name: span.track for span in spans} == tracks | {"output": "front end"}
    assert all(span.duration_ns >= 0 and span.start_ns > 0 for span in spans)
    assert [span.name for span in spans].count("forward") == 3
    assert llm.stop_profile() == []


def test_a_script_without_a_main_guard_works(succ: Path, tmp_path: Path) -> None:
    """Case ST03."""
    result = run_script(tmp_path, NO_MAIN_GUARD, str(succ))
    assert (result.returncode, result.stdout) == (0, ALPHABET[1:] + "\n"), result.stderr
    assert result.stderr.count("started") == 1


@pytest.mark.parametrize("multiprocess", [False, True])
def test_corrupt_weights_are_named_where_the_user_looks(succ: Path, tmp_path: Path, multiprocess: bool) -> None:
    """Case ST04."""
    folder = make_succ(tmp_path / "corrupt")
    weights = folder / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 100)
    before = psutil.Process().children()
    began = time.monotonic()
    with pytest.raises(EngineStartError if multiprocess else CheckpointError) as caught:
        LLM(str(folder), **SMALL, max_model_len=64, multiprocess=multiprocess)
    assert time.monotonic() - began < 30
    assert "model.safetensors" in str(caught.value).splitlines()[-1]
    assert psutil.Process().children() == before


FAILING_WORKER = "tests.engine.failing_worker:FailingWorker"


@pytest.mark.parametrize("multiprocess", [False, True])
def test_steps_that_fail_for_some_requests_harm_no_other(succ: Path, multiprocess: bool) -> None:
    with LLM(str(succ), **SMALL, max_model_len=64, multiprocess=multiprocess, worker_cls=FAILING_WORKER) as llm:
        good, *bad = llm.generate(["w", "A" * 13, "B" * 13], GREEDY, use_tqdm=False)
        assert (good.outputs[0].text, good.outputs[0].finish_reason) == ("xyz", "stop")
        for each in bad:
            assert each.outputs[0].finish_reason == "error"
            assert str(each.outputs[0].error).endswith("RuntimeError: the device is gone")
        assert llm.generate("w", GREEDY, use_tqdm=False)[0].outputs[0].text == "xyz"


@pytest.mark.parametrize("multiprocess", [False, True])
def test_a_core_whose_every_step_fails_raises_with_the_root_cause_last(succ: Path, multiprocess: bool) -> None:
    with LLM(str(succ), **SMALL, max_model_len=64, multiprocess=multiprocess, worker_cls=FAILING_WORKER) as llm:
        assert llm.generate("w", GREEDY, use_tqdm=False)[0].outputs[0].text == "xyz"
        began = time.monotonic()
        with pytest.raises(EngineDeadError) as caught:
            llm.generate("A" * 11, GREEDY, use_tqdm=False)
        assert time.monotonic() - began < 30
        assert str(caught.value).splitlines()[-1] == "RuntimeError: the device is gone"
        with pytest.raises(EngineDeadError, match="the device is gone"):
            llm.generate("w", GREEDY, use_tqdm=False)


NO_SOCKETS = """
import json, sys
seen = []
def watch(event, arguments):
    if event in ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        seen.append([event, repr(arguments[1:])])
sys.addaudithook(watch)
from octavo import LLM, SamplingParams
for multiprocess in (False, True):
    with LLM(sys.argv[1], multiprocess=multiprocess, max_model_len=64, num_threads=1) as llm:
        assert llm.generate("w", SamplingParams(temperature=0), use_tqdm=False)[0].outputs[0].text == "xyz"
import psutil
print(json.dumps(seen + [repr(c) for c in psutil.Process().net_connections("inet")]))
"""


def test_offline_no_socket_but_unix_ones_is_opened(succ: Path, tmp_path: Path) -> None:
    """Case ST06: what Python code opens shows in audit events, what C code opens in the process's connections."""
    result = run_script(tmp_path, NO_SOCKETS, str(succ))
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == []


CORE_SOCKETS = """
import sys
import psutil
from octavo import LLM, SamplingParams
with LLM(sys.argv[1], multiprocess=True, max_model_len=64, num_threads=1) as llm:
    llm.generate("w", SamplingParams(temperature=0), use_tqdm=False)
    [core] = psutil.Process().children()
    print(core.net_connections("inet"))
"""


def test_the_background_core_opens_no_internet_socket(succ: Path, tmp_path: Path) -> None:
    result = run_script(tmp_path, CORE_SOCKETS, str(succ))
    assert (result.returncode, result.stdout) == (0, "[]\n"), result.stderr


def test_an_engine_with_nothing_to_do_uses_no_cpu(llm: LLM) -> None:
    llm.generate(["A"], GREEDY, use_tqdm=False)
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    assert len(processes) > 1

    def cpu_seconds() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    time.sleep(0.1)
    before = cpu_seconds()
    time.sleep(0.5)
    assert cpu_seconds() - before <= 0.1
