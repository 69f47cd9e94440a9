"""From a LoRARequest to an adapter that was found and checked."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from octavo.checkpoint.adapter import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    adapter_hash,
    check_finite,
    projection_shapes,
    read_adapter,
)
from octavo.config.lora import LoRAConfig
from octavo.words.errors import CheckpointError, RequestError, UnsupportedError
from octavo.words.lora import Adapter, LoRARequest
from octavo.words.model_facts import ModelFacts

SETTLED_S = 2.0
"""A file written less than so long before it was read may be written again within the same tick of its clock."""

_State = tuple[tuple[int, ...], ...]


class Adapters(Protocol):
    """Finds the adapter that a request names."""

    def find(self, request: object) -> Adapter | None:
        """The adapter of a LoRARequest as its files are now; None for None. Raises RequestError. Thread-safe."""
        ...


class NoAdapters:
    """LoRA is off."""

    def find(self, request: object) -> Adapter | None:
        if request is not None:
            raise RequestError(
                "this engine serves no LoRA adapters; start it with enable_lora (--enable-lora).", param="lora_request"
            )
        return None


@dataclass(frozen=True, slots=True)
class _Known:
    state: _State
    content_hash: str


def adapters_of(config: LoRAConfig, facts: ModelFacts) -> Adapters:
    """What finds adapters for an engine of this config."""
    return AdapterFolders(facts, config.max_lora_rank) if config.enable_lora else NoAdapters()


class AdapterFolders:
    """Reads adapters' folders; one whose files are as they were is not read again."""

    def __init__(self, facts: ModelFacts, max_rank: int) -> None:
        self._shapes = projection_shapes(facts)
        self._max_rank = max_rank
        self._known: dict[Path, _Known] = {}

    def find(self, request: object) -> Adapter | None:
        if request is None:
            return None
        if not isinstance(request, LoRARequest):
            name = "lora_request"
            raise RequestError(f"{name} must be a LoRARequest, got {type(request).__name__}.", param=name)
        try:
            folder = Path(request.lora_path).expanduser().resolve()
            return Adapter(request.lora_name, str(folder), self._content_hash(folder))
        except (CheckpointError, UnsupportedError, OSError, ValueError, RuntimeError) as error:  # or no path at all
            raise RequestError(f"adapter {request.lora_name!r}: {error}", param="lora_request") from error

    def _content_hash(self, folder: Path) -> str:
        state = _state_of(folder)
        known = self._known.get(folder)
        if known is not None and known.state == state:
            return known.content_hash
        begun = time.time()
        check_finite(read_adapter(folder, self._shapes, self._max_rank))
        content_hash = adapter_hash(folder)
        self._known.pop(folder, None)
        if _is_settled(state, begun):
            self._known[folder] = _Known(state, content_hash)
        return content_hash


def _state_of(folder: Path) -> _State:
    found = []
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        try:
            file = os.stat(folder / name)
        except OSError as error:
            raise CheckpointError(folder / name, f"cannot be read: {error.strerror}") from error
        found.append((file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns))
    return tuple(found)


def _is_settled(state: _State, now: float) -> bool:
    return all(changed_ns < (now - SETTLED_S) * 1e9 for _, _, *times in state for changed_ns in times)
