"""Who leaves costs at most one step more: counted in steps of a core that takes each only when it is told to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from octavo.config.engine_config import EngineConfig
from octavo.config.flat import EngineArgs
from octavo.engine.build import build_engine_core
from octavo.engine.info import EngineInfo
from octavo.engine.metric import Metric
from octavo.frontend.async_llm import AsyncLLM
from octavo.words.errors import EngineDeadError
from octavo.words.messages import EngineCoreOutputs, EngineCoreRequest, SchedulerOutput
from octavo.words.sampling_params import RequestOutputKind, SamplingParams

OPTIONS: dict[str, Any] = {
    "load_format": "mock", "distributed_executor_backend": "simulated", "max_model_len": 256, "max_burst_ms": 0,
    "plugins": "", "disable_log_stats": True,
}  # fmt: skip
LONG = SamplingParams(max_tokens=200, ignore_eos=True, output_kind=RequestOutputKind.DELTA)


class SteppedClient:
    """A core in this process that takes as many steps as it is allowed; ``launched`` are the requests of each."""

    problem = None

    def __init__(self, config: EngineConfig) -> None:
        self.core, self._info = build_engine_core(config)
        self.launched: list[set[str]] = []
        self._allowed = threading.Semaphore(0)
        self._returned = threading.Semaphore(0)
        self._is_over = False
        self._execute = self.core.executor.execute
        self.core.executor.execute = self._note  # type: ignore[method-assign]

    def _note(self, step: SchedulerOutput) -> Any:
        self.launched.append(set(step.num_scheduled_tokens))
        return self._execute(step)

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def is_idle(self) -> bool:
        """Whether nobody runs, waits, or holds a block."""
        stats = self.core.call("stats")
        return (stats.num_running, stats.num_waiting, stats.kv_cache_usage) == (0, 0, 0.0)

    async def take_steps(self, number: int) -> None:
        """Allow so many steps and return when they are done."""
        for _ in range(number):
            self._allowed.release()
            assert await asyncio.to_thread(self._returned.acquire, timeout=30)

    def add_request(self, request: EngineCoreRequest) -> None:
        self.core.add_request(request)

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        self.core.abort_soon(request_ids)

    def get_output(self, *, blocking: bool = True) -> EngineCoreOutputs | None:
        self._allowed.acquire()
        if self._is_over:
            raise EngineDeadError("the engine was shut down")
        outputs = self.core.step().get(0) or EngineCoreOutputs()
        self._returned.release()
        return outputs

    def call(self, name: str, *args: Any) -> Any:
        return self.core.call(name, *args)

    def check_health(self) -> None:
        pass

    def metrics(self) -> list[Metric]:
        return []

    def shutdown(self) -> None:
        self._is_over = True
        self._allowed.release()
        self.core.shutdown()


async def close(stream: Any, llm: AsyncLLM) -> None:
    await stream.aclose()


async def cancel_who_waits(stream: Any, llm: AsyncLLM) -> None:
    waiting = asyncio.ensure_future(anext(stream))
    while (await asyncio.wait([waiting], timeout=0.05))[0]:  # what came already is taken at once
        waiting = asyncio.ensure_future(anext(stream))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def abort_by_id(stream: Any, llm: AsyncLLM) -> None:
    await llm.abort("mine")


@pytest.mark.parametrize("leave", [close, cancel_who_waits, abort_by_id])
@pytest.mark.parametrize(("is_async", "n"), [(False, 1), (True, 1), (False, 3)])
def test_no_step_is_begun_for_who_has_left_and_the_next_to_end_frees_the_blocks(
    succ: Path, leave: Callable[[Any, AsyncLLM], Any], is_async: bool, n: int
) -> None:
    async def serve() -> None:
        made: list[SteppedClient] = []

        def make_client(config: EngineConfig) -> SteppedClient:
            made.append(SteppedClient(config))
            return made[0]

        llm = AsyncLLM.from_engine_args(
            EngineArgs(str(succ), **OPTIONS, async_scheduling=is_async), make_client=make_client
        )
        [client] = made
        try:
            stream = llm.generate("A" * 40, LONG.clone(n=n), request_id="mine")
            first = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            await client.take_steps(4)
            await first
            assert client.launched[-1] and not client.is_idle
            num_launched = len(client.launched)
            await leave(stream, llm)
            await client.take_steps(1)
            assert not any(client.launched[num_launched:])
            assert client.is_idle
        finally:
            llm.shutdown()

    asyncio.run(asyncio.wait_for(serve(), 60))
