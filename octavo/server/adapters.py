"""LoRA adapters as models of their own: which there are, and the routes that load and unload them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from octavo.checkpoint.adapter import CONFIG_FILE, WEIGHTS_FILE
from octavo.frontend.async_llm import AsyncLLM
from octavo.server.api_error import ApiError
from octavo.server.body import BodyReader
from octavo.server.engine_state import EngineState
from octavo.words.errors import ConfigError
from octavo.words.lora import LoRARequest

_NAME = re.compile(r"\w[\w.:@-]*(/\w[\w.:@-]*)*")
_MAX_NAME = 200


class LoadAdapterRequest(msgspec.Struct, kw_only=True):
    """``lora_path``: a folder below --lora-folder. ``load_inplace``: the name may be taken, and then means this one."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadAdapterRequest(msgspec.Struct, kw_only=True):
    """``lora_int_id`` is taken for vLLM's sake and says nothing."""

    lora_name: str
    lora_int_id: int | None = None


class AdapterNames:
    """The adapters that clients may call, by name; ``taken`` are the base model's names."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        self._taken = frozenset(taken)
        self._adapters: dict[str, LoRARequest] = {}

    def __iter__(self) -> Iterator[LoRARequest]:
        return iter(self._adapters.values())

    def get(self, name: str) -> LoRARequest | None:
        """The adapter of that name."""
        return self._adapters.get(name)

    async def add(self, llm: AsyncLLM, name: str, path: Path, *, replaces: bool = False) -> None:
        """Check an adapter, have it in the engine's memory, and let clients call it. Raises ApiError, RequestError."""
        self._check_name(name, replaces)
        adapter = LoRARequest(name, len(self._adapters) + 1, str(path))
        await llm.add_lora(adapter)
        self._check_name(name, replaces)  # another may have come meanwhile
        self._adapters[name] = adapter

    def remove(self, name: str) -> None:
        """Clients may call it no more; answers that run go on. Raises ApiError."""
        if self._adapters.pop(name, None) is None:
            raise ApiError(404, f"there is no adapter {name[:_MAX_NAME]!r}.", param="lora_name", code="model_not_found")

    def _check_name(self, name: str, replaces: bool) -> None:
        if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
            words = "letters, digits and ._:@-, and slashes between such words"
            raise ApiError(400, f"lora_name must be of {words}, and of at most {_MAX_NAME}.", param="lora_name")
        if name in self._taken or (name in self._adapters and not replaces):
            raise ApiError(400, f"lora_name {name!r} is taken; choose another one.", param="lora_name")


class AdapterRoutes:
    """Load and unload adapters from below one folder; there with ``--lora-folder`` only."""

    def __init__(self, folder: str, state: EngineState, adapters: AdapterNames, bodies: BodyReader) -> None:
        self._folder = Path(folder)
        self._state = state
        self._adapters = adapters
        self._bodies = bodies

    async def load(self, request: Request) -> Response:
        """Let clients call an adapter."""
        body = await self._bodies.read(request, LoadAdapterRequest)
        path = await asyncio.to_thread(folder_below, self._folder, body.lora_path)
        await self._adapters.add(self._state.llm, body.lora_name, path, replaces=body.load_inplace)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def unload(self, request: Request) -> Response:
        """Let them call it no more."""
        body = await self._bodies.read(request, UnloadAdapterRequest)
        self._adapters.remove(body.lora_name)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def folder_below(root: Path, path: str) -> Path:
    """The folder that ``path`` names, its files and itself below ``root`` whatever links say; else ApiError 400."""
    try:
        root = root.resolve()
        folder = (root / path).resolve()
        real = [folder, *((folder / name).resolve() for name in (CONFIG_FILE, WEIGHTS_FILE))]
        if folder != root and all(each.is_relative_to(root) for each in real) and folder.is_dir():
            return folder
    except (OSError, ValueError, RuntimeError):
        pass  # too long a name, a null byte, a loop of links
    raise ApiError(400, "lora_path must be a folder below the server's --lora-folder.", param="lora_path")


def parse_modules(listed: str | None) -> dict[str, Path]:
    """--lora-modules: name=path or JSON objects with "name" and "path", with commas between. Raises ConfigError."""
    text = (listed or "").strip()
    pairs = _objects(text) if text.startswith("{") else _pairs(text)
    modules: dict[str, Path] = {}
    for name, path in pairs:
        if not (name and path) or name in modules:
            raise _odd_modules(f"{name}={path}")
        modules[name] = Path(path).expanduser()
    return modules


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for entry in filter(None, map(str.strip, text.split(","))):
        name, _, path = entry.partition("=")
        yield name.strip(), path.strip()


def _objects(text: str) -> Iterator[tuple[str, str]]:
    try:
        for module in msgspec.json.decode(f"[{text}]", type=list[_Module]):
            yield module.name, module.path
    except msgspec.MsgspecError:
        raise _odd_modules(text) from None


class _Module(msgspec.Struct):
    """As vLLM writes it; other fields say nothing here."""

    name: str
    path: str


def _odd_modules(entry: str) -> ConfigError:
    return ConfigError(
        f"lora_modules has {entry!r:.200}; give name=path, or objects with a name and a path, each name once, with "
        "commas between"
    )
