"""AsyncLLM over a core in a background process, on the model that counts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.config.flat import EngineArgs
from octavo.engine.supervisor import Supervisor
from octavo.frontend.admission import Admission
from octavo.frontend.async_llm import AsyncLLM
from octavo.frontend.llm import LLM
from octavo.words.errors import EngineDeadError, OverloadedError, RequestError, RequestTimeoutError
from octavo.words.outputs import RequestOutput
from octavo.words.sampling_params import RequestOutputKind, SamplingParams
from octavo.words.structured_outputs import StructuredOutputParams

OPTIONS: dict[str, Any] = {"max_model_len": 1024, "kv_cache_memory_bytes": "16MiB", "disable_log_stats": True}
DELTA = RequestOutputKind.DELTA
FINAL = RequestOutputKind.FINAL_ONLY


def endless(**params: Any) -> SamplingParams:
    return SamplingParams(max_tokens=900, ignore_eos=True, temperature=0.0, output_kind=DELTA, **params)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def llm(succ: Path) -> Iterator[AsyncLLM]:
    llm = AsyncLLM.from_engine_args(EngineArgs(str(succ), **OPTIONS))
    yield llm
    llm.shutdown()


@pytest.fixture
def run(runner: asyncio.Runner) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine on the one loop of these tests, for at most 30 s."""
    return lambda work: runner.run(asyncio.wait_for(work, 30))


async def answer(llm: AsyncLLM, prompt: Any, params: SamplingParams | None = None, **options: Any) -> RequestOutput:
    outputs = [output async for output in llm.generate(prompt, params, **options)]
    assert outputs[-1].finished
    return outputs[-1]


async def soon(holds: Callable[[], Awaitable[bool]]) -> bool:
    for _ in range(500):
        if await holds():
            return True
        await asyncio.sleep(0.01)
    return False


async def is_idle(llm: AsyncLLM) -> bool:
    stats = await llm.call("stats")
    return (stats.num_running, stats.num_waiting, stats.kv_cache_usage) == (0, 0, 0.0)


def test_stream_final_and_offline_are_the_same_answer(llm: AsyncLLM, succ: Path, run: Any) -> None:
    def params(kind: RequestOutputKind) -> SamplingParams:
        return SamplingParams(n=3, temperature=1.5, seed=5, max_tokens=40, logprobs=2, output_kind=kind)

    async def both() -> tuple[dict[int, list[Any]], RequestOutput]:
        streamed: dict[int, list[Any]] = {0: ["", []], 1: ["", []], 2: ["", []]}
        async for output in llm.generate("ABC", params(DELTA)):
            for choice in output.outputs:
                streamed[choice.index][0] += choice.text
                streamed[choice.index][1] += choice.token_ids
        return streamed, await answer(llm, "ABC", params(FINAL))

    streamed, final = run(both())
    assert [[choice.text, choice.token_ids] for choice in final.outputs] == list(streamed.values())
    with LLM(str(succ), **OPTIONS) as offline:
        (expected,) = offline.generate("ABC", params(FINAL), use_tqdm=False)
    assert final.outputs == expected.outputs


def test_closing_the_generator_ends_the_request_in_the_core(llm: AsyncLLM, run: Any) -> None:
    async def close_early() -> bool:
        stream = llm.generate("A", endless())
        await anext(stream)
        await stream.aclose()
        return await soon(lambda: is_idle(llm)) and llm.num_unfinished_requests == 0

    assert run(close_early())


def test_cancelling_who_waits_ends_the_request_in_the_core(llm: AsyncLLM, run: Any) -> None:
    async def cancel() -> bool:
        task = asyncio.create_task(answer(llm, "A", endless(n=1)))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await soon(lambda: is_idle(llm))

    assert run(cancel())


def test_a_slow_reader_gets_everything_in_fewer_outputs(llm: AsyncLLM, run: Any) -> None:
    async def read_slowly() -> list[RequestOutput]:
        outputs = []
        params = SamplingParams(max_tokens=200, ignore_eos=True, temperature=0.0, output_kind=DELTA)
        async for output in llm.generate("A", params):
            outputs.append(output)
            await asyncio.sleep(0.05)
        return outputs

    outputs = run(read_slowly())
    assert len(outputs) < 200
    assert sum(len(output.outputs[0].token_ids) for output in outputs) == 200


def test_abort_gives_the_reader_a_last_output(llm: AsyncLLM, run: Any) -> None:
    async def abort() -> RequestOutput:
        task = asyncio.create_task(answer(llm, "A", endless(), request_id="mine"))
        await asyncio.sleep(0.05)
        await llm.abort("mine")
        await llm.abort(["mine", "unknown"])
        return await task

    assert run(abort()).outputs[0].finish_reason == "abort"


def test_requests_with_the_same_id_get_their_own_answers(llm: AsyncLLM, run: Any) -> None:
    async def twins() -> list[RequestOutput]:
        params = SamplingParams(max_tokens=3, temperature=0.0, output_kind=FINAL)
        return list(await asyncio.gather(*(answer(llm, text, params, request_id="twin") for text in "Aa1")))

    assert [output.outputs[0].text for output in run(twins())] == ["BCD", "bcd", "234"]


def test_a_request_that_takes_too_long_is_ended(llm: AsyncLLM, run: Any) -> None:
    async def hurry() -> None:
        with pytest.raises(RequestTimeoutError, match="within 0.05 s"):
            await answer(llm, "A", endless(), timeout_s=0.05)
        assert await soon(lambda: is_idle(llm))

    run(hurry())


def test_paused_requests_wait_and_running_ones_are_ended(llm: AsyncLLM, run: Any) -> None:
    async def pause() -> tuple[str | None, bool, str]:
        running = asyncio.create_task(answer(llm, "A", endless()))
        await asyncio.sleep(0.05)
        await llm.pause_generation(mode="abort")
        assert llm.is_paused
        held = asyncio.create_task(answer(llm, "A", SamplingParams(max_tokens=2, temperature=0.0)))
        await asyncio.sleep(0.05)
        was_held = not held.done()
        await llm.resume_generation()
        return (await running).outputs[0].finish_reason, was_held, (await held).outputs[0].text

    assert run(pause()) == ("abort", True, "BC")


def test_pausing_can_wait_for_what_runs(llm: AsyncLLM, run: Any) -> None:
    async def pause() -> RequestOutput:
        running = asyncio.create_task(answer(llm, "A", SamplingParams(max_tokens=100, ignore_eos=True)))
        await asyncio.sleep(0.02)
        await llm.pause_generation(mode="wait")
        await llm.resume_generation()
        return await running

    assert run(pause()).outputs[0].finish_reason == "length"
    with pytest.raises(RequestError, match="abort or wait"):
        run(llm.pause_generation(mode="forever"))  # type: ignore[arg-type]


def test_wrong_requests_are_refused_before_they_run(llm: AsyncLLM, run: Any) -> None:
    async def refuse() -> None:
        for prompt in ("", [320], [-1], 7):
            with pytest.raises(RequestError):
                await answer(llm, prompt)
        assert llm.num_unfinished_requests == 0

    run(refuse())
    assert run(answer(llm, "A", SamplingParams(max_tokens=2, temperature=0.0))).outputs[0].text == "BC"


def test_a_long_text_is_read_beside_the_event_loop(llm: AsyncLLM, run: Any) -> None:
    async def long_text() -> int:
        ticks = 0

        async def tick() -> AsyncIterator[None]:
            while True:
                await asyncio.sleep(0)
                yield

        task = asyncio.create_task(answer(llm, "A" * 100_000))
        async for _ in tick():
            ticks += 1
            if task.done():
                break
        with pytest.raises(RequestError, match="maximum context length is 1024"):
            await task
        return ticks

    assert run(long_text()) > 3


def test_what_is_over_the_limits_of_the_queue_is_refused() -> None:
    class Waiting:
        def __init__(self, num_tokens: int) -> None:
            self.choices = [None]
            self.prompt_token_ids = [0] * num_tokens

    admission = Admission(max_requests=2, max_tokens=100)
    admission.check(1, 500)  # an empty queue takes everything
    first: Any = Waiting(60)
    admission.add(first)
    admission.check(1, 40)
    with pytest.raises(OverloadedError, match="60 prompt tokens wait already and this request brings 41"):
        admission.check(1, 41)
    with pytest.raises(OverloadedError, match="1 requests wait already and this request brings 2"):
        admission.check(2, 1)
    admission.remove(first)
    admission.remove(first)
    admission.check(2, 50)
    assert (admission.num_requests, admission.num_tokens) == (0, 0)


def test_a_dead_core_ends_every_request_with_its_cause(succ: Path) -> None:
    async def die() -> None:
        args = EngineArgs(str(succ), **OPTIONS, on_engine_death="exit")
        llm = await asyncio.to_thread(AsyncLLM.from_engine_args, args)
        try:
            tasks = [asyncio.create_task(answer(llm, "A", endless())) for _ in range(3)]
            await asyncio.sleep(0.1)
            assert isinstance(llm.client, Supervisor)
            os.kill(llm.client.pid, signal.SIGKILL)
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(ended, EngineDeadError)
            assert llm.errored and not await llm.is_healthy()
            with pytest.raises(EngineDeadError):
                await answer(llm, "A")
        finally:
            await asyncio.to_thread(llm.shutdown)

    asyncio.run(asyncio.wait_for(die(), 60))


def test_the_front_end_maps_no_libtorch(succ: Path, tmp_path: Path) -> None:
    script = tmp_path / "front_end.py"
    script.write_text(
        "import asyncio, pathlib, sys\n"
        "from octavo import AsyncLLM, EngineArgs\n"
        "async def main():\n"
        "    llm = await asyncio.to_thread(AsyncLLM.from_engine_args, EngineArgs(sys.argv[1], max_model_len=64))\n"
        "    async for output in llm.generate('A'):\n"
        "        text = output.outputs[0].text\n"
        "    assert 'torch' not in pathlib.Path('/proc/self/maps').read_text()\n"
        "    assert 'torch' in pathlib.Path(f'/proc/{llm.client.pid}/maps').read_text()\n"
        "    llm.shutdown()\n"
        "    print(text)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, script, succ], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("BCD")


def test_a_large_constraint_is_checked_while_others_go_on(llm: AsyncLLM, run: Any) -> None:
    choices = [f"choice {number}" for number in range(20_000)]

    async def beats_meanwhile() -> int:
        params = SamplingParams(structured_outputs=StructuredOutputParams(choice=choices))
        preparing = asyncio.create_task(llm.prepare("A", params))
        beats = 0
        while not preparing.done():
            await asyncio.sleep(0)
            beats += 1
        await preparing
        return beats

    assert run(beats_meanwhile()) > 10
