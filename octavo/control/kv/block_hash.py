"""Block hashes: equal hashes mean equal tokens, equal history and equal everything else that shapes keys and values.

Each hash covers its parent's, so one hash names a whole prefix. They are the same in every process and on every
machine: SHA-256 over the msgpack encoding of (parent hash, token ids, extra keys).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from octavo.control.request import BlockHasher, Request
from octavo.words.lora import Adapter

NONE_HASH = hashlib.sha256(b"octavo: no block before this one").digest()
"""The parent of a first block."""

ExtraKey: TypeAlias = tuple[str | bytes | int, ...]
"""A tag, then what tells apart two blocks with equal tokens and equal history."""

ExtraKeySource: TypeAlias = Callable[[Any, int, int], Iterable[ExtraKey]]
"""(request, start, end) -> the extra keys of the block that holds tokens [start, end)."""


class SaltedRequest(Protocol):
    """A request whose user wants its cache apart from others'."""

    @property
    def cache_salt(self) -> str | None: ...


class AdaptedRequest(Protocol):
    """A request that runs with a LoRA adapter, or with None."""

    @property
    def adapter(self) -> Adapter | None: ...


class PlacedItem(Protocol):
    """A multimodal item in a prompt: its content's hash, and the tokens [offset, offset + length) it stands for."""

    @property
    def content_hash(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def length(self) -> int: ...


class MultiModalRequest(Protocol):
    """A request with multimodal items, in order of offset."""

    @property
    def items(self) -> Sequence[PlacedItem]: ...


class EmbeddedRequest(Protocol):
    """A request whose prompt is given as embeddings, at least in part."""

    def prompt_embeds_bytes(self, start: int, end: int) -> bytes:
        """The raw embeddings given for tokens [start, end); empty where there are none."""


def cache_salt_keys(request: SaltedRequest, start: int, end: int) -> Iterable[ExtraKey]:
    """The salt, in the first block only: the chain carries it on."""
    if start == 0 and request.cache_salt is not None:
        return (("cache_salt", request.cache_salt),)
    return ()


def lora_keys(request: AdaptedRequest, start: int, end: int) -> Iterable[ExtraKey]:
    """The adapter changes every key and value. What it contains counts, not what it is called."""
    return (("lora", request.adapter.content_hash),) if request.adapter is not None else ()


def multimodal_keys(request: MultiModalRequest, start: int, end: int) -> Iterable[ExtraKey]:
    """Each item that touches the block, with its offset from the block's start (negative if it began before)."""
    return tuple(
        ("mm", item.content_hash, item.offset - start)
        for item in request.items
        if item.offset < end and item.offset + item.length > start
    )


def prompt_embeds_keys(request: EmbeddedRequest, start: int, end: int) -> Iterable[ExtraKey]:
    """Placeholder ids say nothing about embeddings, so their bytes are hashed."""
    given = request.prompt_embeds_bytes(start, end)
    return (("prompt_embeds", hashlib.sha256(given).digest()),) if given else ()


def hash_block(parent: bytes, token_ids: list[int], extra_keys: Sequence[ExtraKey] = ()) -> bytes:
    """Return the 32-byte hash of a full block that follows the block or prefix ``parent``."""
    return hashlib.sha256(_encode((parent, token_ids, extra_keys))).digest()


_encode = msgspec.msgpack.Encoder().encode


class PrefixHasher:
    """Hashes a request's new full blocks of ``block_size`` tokens; see ``make_block_hasher``."""

    def __init__(self, block_size: int, sources: Sequence[ExtraKeySource]) -> None:
        self.block_size = block_size
        self._sources = tuple(sources)

    def __call__(self, request: Request) -> list[bytes]:
        """Return the hashes of the full blocks that ``request.block_hashes`` does not hold yet."""
        token_ids, known, block_size = request.all_token_ids, request.block_hashes, self.block_size
        start = len(known) * block_size
        new_hashes: list[bytes] = []
        parent = known[-1] if known else NONE_HASH
        for end in range(start + block_size, len(token_ids) + 1, block_size):
            extra_keys = [key for source in self._sources for key in source(request, start, end)]
            parent = hash_block(parent, token_ids[start:end], extra_keys)
            new_hashes.append(parent)
            start = end
        return new_hashes


def make_block_hasher(
    hash_block_size: int, sources: Sequence[ExtraKeySource] = (cache_salt_keys, lora_keys, prompt_embeds_keys)
) -> BlockHasher:
    """Return the function that hashes a request's new full blocks of ``hash_block_size`` tokens.

    ``sources`` are asked for extra keys in order; a feature that changes keys and values adds its own.
    """
    if hash_block_size < 1:
        raise ValueError(f"hash_block_size must be at least 1, got {hash_block_size}")
    return PrefixHasher(hash_block_size, sources)
