"""An adapter goes while a request for it is on its way: that request ends in one clear way, and no other notices."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo import AsyncLLM, EngineArgs
from octavo.config.server import ServerConfig
from octavo.server.adapters import AdapterNames
from octavo.server.app import build_app, build_gate
from octavo.server.body import BodyReader
from octavo.server.context import ServerContext
from octavo.server.engine_state import EngineState
from tests.server.conftest import MODEL
from tests.tiny_adapters import save_tiny_adapter

Happening = Callable[[httpx.AsyncClient], Awaitable[None]]


class Interrupted:
    """An engine with which something happens between the check of a request's model and the look for its adapter."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm
        self.happening: Callable[[], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    async def prepare(self, *args: Any, lora_request: Any = None, **options: Any) -> Any:
        if self.happening is not None and lora_request is not None and lora_request.lora_name == "one":
            happening, self.happening = self.happening, None
            await happening()
        return await self._llm.prepare(*args, lora_request=lora_request, **options)


class Served:
    """The application on a real engine, with adapters "one" and "two" below its folder."""

    def __init__(self, succ: Path, folder: Path, runner: asyncio.Runner) -> None:
        for seed, name in enumerate(("one", "two")):
            save_tiny_adapter(folder / name, succ, seed=seed, size=0.4)
        self.folder = folder
        self.runner = runner
        options = {"max_model_len": 128, "kv_cache_memory_bytes": 1 << 24, "enable_lora": True, "max_cpu_loras": 2}
        self.llm = Interrupted(AsyncLLM.from_engine_args(EngineArgs(str(succ), **options)))
        config = ServerConfig(disable_access_log=True, lora_folder=str(folder))
        self.context = ServerContext(
            state=EngineState(),
            config=config,
            model_names=(MODEL,),
            bodies=BodyReader(100_000),
            adapters=AdapterNames(taken=(MODEL,)),
        )
        self.context.state.set_ready(self.llm)  # type: ignore[arg-type]
        self.app = build_gate(build_app(self.context), self.context, [])

    def run(self, work: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
        async def on_client() -> Any:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=True)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await asyncio.wait_for(work(client), 60)

        return self.runner.run(on_client())


@pytest.fixture(scope="module")
def served(succ: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with asyncio.Runner() as runner:
        served = Served(succ, tmp_path_factory.mktemp("adapters"), runner)
        yield served
        served.llm.shutdown()


async def load(client: httpx.AsyncClient, name: str) -> None:
    answer = await client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": name})
    assert answer.status_code == 200, answer.text


async def unload(client: httpx.AsyncClient, name: str) -> None:
    answer = await client.post("/v1/unload_lora_adapter", json={"lora_name": name})
    assert answer.status_code == 200, answer.text


async def ask(client: httpx.AsyncClient, path: str, model: str) -> httpx.Response:
    body: dict[str, Any] = {"model": model, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    chat = {"messages": [{"role": "user", "content": "ABC"}]}
    return await client.post(path, json=body | ({"prompt": "ABCDEF"} if path == "/v1/completions" else chat))


def text(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    return choice.get("text") or choice["message"]["content"]


PATHS = ("/v1/completions", "/v1/chat/completions")


@pytest.mark.parametrize("path", PATHS)
def test_a_request_that_named_an_adapter_is_answered_by_it_though_its_name_goes(served: Served, path: str) -> None:
    async def race(client: httpx.AsyncClient) -> None:
        for name in ("one", "two"):
            await load(client, name)
        names = (MODEL, "one", "two")
        alone = [text(await ask(client, path, name)) for name in names]
        assert len(set(alone)) == 3
        served.llm.happening = lambda: unload(client, "one")
        late = asyncio.create_task(ask(client, path, "one"))
        others = [await ask(client, path, name) for name in (MODEL, "two")]
        assert [text(each) for each in (others[0], await late, others[1])] == alone
        gone = await ask(client, path, "one")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")
        await unload(client, "two")

    served.run(race)


@pytest.mark.parametrize("path", PATHS)
def test_a_request_whose_adapter_was_deleted_meanwhile_is_told_so_and_no_other_notices(
    served: Served, path: str, tmp_path: Path
) -> None:
    kept = shutil.copytree(served.folder / "one", tmp_path / "kept")

    async def race(client: httpx.AsyncClient) -> None:
        for name in ("one", "two"):
            await load(client, name)
        alone = [text(await ask(client, path, name)) for name in (MODEL, "one", "two")]

        async def delete() -> None:
            await unload(client, "one")
            shutil.rmtree(served.folder / "one")

        served.llm.happening = delete
        late = asyncio.create_task(ask(client, path, "one"))
        others = [await ask(client, path, name) for name in (MODEL, "two")]
        assert [text(each) for each in others] == [alone[0], alone[2]]
        problem = await late
        assert problem.status_code == 400
        assert "adapter 'one'" in problem.json()["error"]["message"]
        shutil.copytree(kept, served.folder / "one")
        await load(client, "one")
        assert text(await ask(client, path, "one")) == alone[1]
        for name in ("one", "two"):
            await unload(client, name)

    served.run(race)
