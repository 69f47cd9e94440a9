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
    """An engine with which something happens to a request of adapter "one".

    ``happening``: between the check of its model and the look for its adapter; ``later``: between that and the engine,
    or between the look for an adapter that is loaded and its loading.
    """

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm
        self.happening: Callable[[], Awaitable[None]] | None = None
        self.later: Callable[[], None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    async def prepare(self, *args: Any, lora_request: Any = None, **options: Any) -> Any:
        if self.happening is not None and lora_request is not None and lora_request.lora_name == "one":
            happening, self.happening = self.happening, None
            await happening()
        prepared = await self._llm.prepare(*args, lora_request=lora_request, **options)
        if lora_request is not None and lora_request.lora_name == "one":
            self._do_what_comes_later()
        return prepared

    async def add_lora(self, lora_request: Any) -> None:
        find = self._llm._inputs.find_adapter

        def find_and_lose(asked: Any) -> Any:
            found = find(asked)
            self._do_what_comes_later()
            return found

        self._llm._inputs.find_adapter = find_and_lose  # type: ignore[method-assign]
        try:
            await self._llm.add_lora(lora_request)
        finally:
            del self._llm._inputs.find_adapter

    def _do_what_comes_later(self) -> None:
        later, self.later = self.later, None
        if later is not None:
            later()


class Served:
    """The application on a real engine, with three adapters below its folder, of which two fit into memory."""

    def __init__(self, succ: Path, folder: Path, runner: asyncio.Runner) -> None:
        for seed, name in enumerate(("one", "two", "three")):
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


async def load(client: httpx.AsyncClient, name: str, **more: Any) -> None:
    answer = await client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": name, **more})
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


def cut_off(folder: Path) -> None:
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


LOSSES: dict[str, tuple[Callable[[Path], None], str]] = {
    "deleted": (shutil.rmtree, "cannot be read"),
    "cut off": (cut_off, "truncated"),
    "written anew": (lambda folder: (folder / "adapter_config.json").write_text("{"), "JSON"),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_files_that_go_before_the_engine_has_read_them_are_the_fault_of_that_request_alone(
    served: Served, loss: str, tmp_path: Path
) -> None:
    spoil, says = LOSSES[loss]
    kept = shutil.copytree(served.folder / "one", tmp_path / "kept")

    async def race(client: httpx.AsyncClient) -> None:
        for name in ("one", "two", "three"):  # the first is not in memory any more
            await load(client, name)
        alone = [text(await ask(client, "/v1/completions", name)) for name in (MODEL, "two")]
        served.llm.later = lambda: spoil(served.folder / "one")
        late, *others = await asyncio.gather(
            *(ask(client, "/v1/completions", name) for name in ("one", MODEL, "two")),
        )
        assert [text(each) for each in others] == alone
        error = late.json()["error"]
        assert (late.status_code, error["type"], error["param"]) == (400, "invalid_request_error", None)
        assert error["message"].startswith("adapter 'one': ") and says in error["message"]
        bring_back()
        body = {"model": "one", "prompt": "ABCDEF", "max_tokens": 4, "stream": True}
        await load(client, "two", load_inplace=True)
        await load(client, "three", load_inplace=True)
        served.llm.later = lambda: spoil(served.folder / "one")
        stream = (await client.post("/v1/completions", json=body)).text
        assert '"type":"invalid_request_error"' in stream and says in stream
        bring_back()
        await unload(client, "one")
        served.llm.later = lambda: spoil(served.folder / "one")
        refused = await client.post("/v1/load_lora_adapter", json={"lora_name": "one", "lora_path": "one"})
        assert refused.status_code == 400 and says in refused.json()["error"]["message"]
        bring_back()
        for name in ("two", "three"):
            await unload(client, name)

    def bring_back() -> None:
        shutil.rmtree(served.folder / "one", ignore_errors=True)
        shutil.copytree(kept, served.folder / "one")

    served.run(race)
