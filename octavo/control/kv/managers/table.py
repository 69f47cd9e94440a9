"""Which manager serves which kind of KV group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from octavo.control.kv.block_pool import BlockPool
from octavo.control.kv.managers.chunked_local import ChunkedLocalAttentionManager
from octavo.control.kv.managers.full import FullAttentionManager
from octavo.control.kv.managers.group_manager import GroupManager
from octavo.control.kv.managers.sliding_window import SlidingWindowManager
from octavo.words.errors import UnsupportedError
from octavo.words.kv_cache_spec import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

MANAGERS: dict[type[KVCacheSpec], Callable[[Any, int, BlockPool, int], GroupManager]] = {
    FullAttentionSpec: FullAttentionManager,
    MLAAttentionSpec: FullAttentionManager,
    SlidingWindowSpec: SlidingWindowManager,
    ChunkedLocalAttentionSpec: ChunkedLocalAttentionManager,
}


def make_group_manager(spec: KVCacheSpec, group_id: int, pool: BlockPool, hash_block_size: int) -> GroupManager:
    """Return the manager for a group; raises UnsupportedError for a kind of layer that has none yet."""
    manager = MANAGERS.get(type(spec))
    if manager is None:
        known = ", ".join(kind.__name__ for kind in MANAGERS)
        raise UnsupportedError(f"no KV cache manager for {type(spec).__name__} layers; there are managers for {known}")
    return manager(spec, group_id, pool, hash_block_size)
