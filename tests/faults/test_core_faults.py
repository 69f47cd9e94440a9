"""The core process is killed, stopped or poisoned under sixteen streams, and no stream notices."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from octavo import AsyncLLM, EngineArgs, RequestOutput, SamplingParams
from octavo.config.flat import config_from_kwargs
from octavo.engine.supervisor import EngineState, Supervisor, supervised
from octavo.words.errors import EngineDeadError
from octavo.words.messages import FinishReason
from octavo.words.sampling_params import RequestOutputKind
from tests import waiting
from tests.fakes import make_message
from tests.faults.planted_worker import FRAGILE_LENGTH, POISON_LENGTH
from tests.held import held
from tests.succ import make_succ
from tests.tiny_models import save_tiny_model

soon = partial(waiting.soon, seconds=20.0)

NUM_TOKENS = 48
PLANTED_WORKER = "tests.faults.planted_worker:PlantedWorker"

STREAMS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 2, "prompt_logprobs": 1},
    {"temperature": 0.0, "min_tokens": 20, "stop": ["XY", "q"], "include_stop_str_in_output": True},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 1.3, "seed": 2, "top_p": 0.9, "top_k": 30, "logprobs": 1},
    {"temperature": 1.0, "seed": 3, "n": 2},
    {"temperature": 0.8, "seed": 4, "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2},
    {"temperature": 1.0, "seed": 5, "stop_token_ids": [7], "min_tokens": 10},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    make_succ(folder / "succ")
    save_tiny_model(folder / "model", "llama")
    return folder


def start(folder: Path, **options: Any) -> AsyncLLM:
    return AsyncLLM.from_engine_args(
        EngineArgs(
            str(folder / "model"),
            tokenizer=str(folder / "succ"),
            max_model_len=256,
            block_size=16,
            num_threads=1,
            disable_log_stats=True,
            **({"worker_cls": PLANTED_WORKER} | options),
        )
    )


def supervisor_of(llm: AsyncLLM) -> Supervisor:
    assert isinstance(llm.client, Supervisor)
    return llm.client


async def stream(llm: AsyncLLM, number: int, seen: Callable[[], None]) -> list[Any]:
    """All that a client gets of one stream, put together."""
    params = SamplingParams(
        max_tokens=NUM_TOKENS, ignore_eos=True, output_kind=RequestOutputKind.DELTA, **STREAMS[number % len(STREAMS)]
    )
    prompt = {"prompt_token_ids": [3 + (number * 31 + index * 7) % 240 for index in range(20 + number)]}
    texts: dict[int, Any] = {}
    last: RequestOutput | None = None
    async for output in llm.generate(prompt, params, f"stream-{number}"):
        for choice in output.outputs:
            text, ids, logprobs, _ = texts.get(choice.index, ("", [], [], None))
            rows = [sorted((token, each.logprob) for token, each in row.items()) for row in choice.logprobs or ()]
            texts[choice.index] = (text + choice.text, ids + choice.token_ids, logprobs + rows, choice.finish_reason)
            assert choice.error is None, choice.error
        last = output
        seen()
    assert last is not None and last.finished
    return [texts, last.num_cached_tokens, last.prompt_logprobs is not None]


async def run_streams(llm: AsyncLLM, disturb: Callable[[], None] | None = None, *, after: int = 60) -> list[Any]:
    """Sixteen streams at once; ``disturb`` is called when that many outputs were seen."""
    num_seen = 0

    def seen() -> None:
        nonlocal num_seen
        num_seen += 1
        if num_seen == after and disturb is not None:
            disturb()

    answers = await asyncio.gather(*(stream(llm, number, seen) for number in range(16)))
    assert num_seen > after
    return list(answers)


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> list[Any]:
    llm = start(folder)
    try:
        if not llm.info.plan.batch_invariant:
            pytest.skip("without native kernels another batch may round differently")
        return asyncio.run(run_streams(llm))
    finally:
        llm.shutdown()


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP])
def test_sixteen_streams_outlive_their_core(folder: Path, undisturbed: list[Any], signal_number: int) -> None:
    """Case CO01."""
    llm = start(folder, engine_stuck_timeout=1.0, max_burst_ms=0.0)  # else some have ended on a fast machine
    core = supervisor_of(llm)
    first_pid = core.pid
    try:
        answers = asyncio.run(asyncio.wait_for(run_streams(llm, lambda: os.kill(core.pid, signal_number)), 60))
        assert core.pid != first_pid
        assert (core.stats.restarts, core.stats.convictions) == (1, 0)
        assert core.stats.replays >= 16
        assert core.state is EngineState.READY
        assert not psutil.pid_exists(first_pid)
    finally:
        llm.shutdown()
    assert answers == undisturbed


def test_a_request_that_kills_the_core_every_time_ends_with_an_error_and_nobody_else_notices(
    folder: Path, undisturbed: list[Any]
) -> None:
    llm = start(folder, max_burst_ms=0.0)  # else a fast machine has ended all streams before the request comes
    core = supervisor_of(llm)
    errors: list[str | None] = []

    async def poison() -> None:
        prompt = {"prompt_token_ids": [250] * POISON_LENGTH}
        async for output in llm.generate(prompt, SamplingParams(max_tokens=4)):
            errors.append(output.outputs[0].error)

    async def everything() -> list[Any]:
        tasks: list[asyncio.Task[None]] = []
        answers = await run_streams(llm, lambda: tasks.append(asyncio.create_task(poison())))
        await tasks[0]
        return answers

    try:
        answers = asyncio.run(asyncio.wait_for(everything(), 60))
        assert (core.stats.restarts, core.stats.convictions) == (2, 1)
    finally:
        llm.shutdown()
    assert errors == ["the engine ended twice while it computed this request"]
    assert answers == undisturbed


def test_a_single_stream_outlives_a_device_that_is_gone(folder: Path) -> None:
    """Every step fails, in which one request is alone: it is not the request."""
    prompt = {"prompt_token_ids": [3 + 7 * index for index in range(FRAGILE_LENGTH)]}
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=24, ignore_eos=True)

    async def answer(llm: AsyncLLM) -> RequestOutput:
        return [output async for output in llm.generate(prompt, params)][-1]

    found = []
    for options, restarts in (({"worker_cls": None}, 0), ({}, 1)):
        llm = start(folder, **options)
        core = supervisor_of(llm)
        try:
            found.append(asyncio.run(asyncio.wait_for(answer(llm), 60)).outputs[0])
            assert (core.stats.restarts, core.stats.convictions) == (restarts, 0)
        finally:
            llm.shutdown()
    plain, disturbed = found
    assert disturbed.error is None
    assert disturbed.token_ids == plain.token_ids


def test_without_restarts_every_stream_is_told_at_once(folder: Path) -> None:
    """Case CO01, the classic behaviour."""
    llm = start(folder, on_engine_death="exit", max_burst_ms=0)  # no stream ends before the core does
    core = supervisor_of(llm)

    async def ask() -> list[BaseException | list[Any]]:
        def kill() -> None:
            os.kill(core.pid, signal.SIGKILL)

        num_seen = 0

        def seen() -> None:
            nonlocal num_seen
            num_seen += 1
            if num_seen == 20:
                kill()

        tasks = [stream(llm, number, seen) for number in range(16)]
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)

    try:
        answers = asyncio.run(ask())
        assert {type(answer) for answer in answers} == {EngineDeadError}
        assert "SIGKILL" in str(answers[0])
        assert core.state is EngineState.DEAD
        assert llm.errored
    finally:
        llm.shutdown()


def simulated(**options: Any) -> Supervisor:
    return supervised(
        config_from_kwargs(model="simulated", distributed_executor_backend="simulated", plugins="", **options)
    )


def test_thirty_restarts_in_a_row_leave_nothing_behind() -> None:
    simulated().shutdown()
    before = held()
    core = simulated()
    tokens: list[int] = []
    held_before_death: list[tuple[int, int, int]] = []

    def take() -> FinishReason | None:
        outputs = core.get_output()
        assert outputs is not None
        tokens.extend(outputs.outputs[0].new_token_ids)
        return outputs.outputs[0].finish_reason

    try:
        core.add_request(make_message("a", 40, max_tokens=8000, ignore_eos=True))
        for number in range(30):
            take()
            assert soon(lambda number=number: core.stats.restarts == number)  # type: ignore[misc]
            held_before_death.append(held())
            os.kill(core.pid, signal.SIGKILL)
        while (reason := take()) is None:
            pass
    finally:
        core.shutdown()
    assert (len(tokens), reason) == (8000, FinishReason.LENGTH)
    assert core.stats.restarts in (29, 30), "the last death may come when the last token is on its way already"
    assert len(set(held_before_death)) == 1, held_before_death
    assert held() == before
