from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass, field

import msgspec
import pytest

from octavo.control.kv.block_hash import (
    NONE_HASH,
    cache_salt_keys,
    hash_block,
    lora_keys,
    make_block_hasher,
    multimodal_keys,
    prompt_embeds_keys,
)
from octavo.words.lora import Adapter
from tests.control.kv.parts import request_of


@dataclass
class Item:
    content_hash: str
    offset: int
    length: int


@dataclass
class FeatureRequest:
    """Has what later features give a request, and nothing else."""

    all_token_ids: list[int]
    cache_salt: str | None = None
    adapter: Adapter | None = None
    items: list[Item] = field(default_factory=list)
    embeds: bytes = b""
    block_hashes: list[bytes] = field(default_factory=list)

    def prompt_embeds_bytes(self, start: int, end: int) -> bytes:
        return self.embeds[start:end]


def test_each_hash_covers_its_parent_so_equal_blocks_differ_by_position():
    hashes = request_of([7] * 48).block_hashes
    assert len(set(hashes)) == 3
    assert hashes[0] == hash_block(NONE_HASH, [7] * 16)
    assert hashes[1] == hash_block(hashes[0], [7] * 16)


def test_a_hash_is_sha256_over_msgpack_of_parent_tokens_and_extra_keys():
    encoded = msgspec.msgpack.encode((NONE_HASH, [1, 2], [("cache_salt", "x")]))
    assert hash_block(NONE_HASH, [1, 2], [("cache_salt", "x")]) == hashlib.sha256(encoded).digest()


def test_only_full_blocks_are_hashed():
    assert len(request_of(range(15)).block_hashes) == 0
    assert len(request_of(range(16)).block_hashes) == 1
    assert len(request_of(range(47)).block_hashes) == 2


def test_appended_tokens_extend_the_chain_as_if_they_had_been_in_the_prompt():
    grown = request_of(range(30))
    for token_id in range(30, 70):
        grown.append_output_tokens([token_id])
    assert grown.block_hashes == request_of(range(70)).block_hashes
    assert len(grown.block_hashes) == 4


def test_a_burst_of_tokens_may_fill_several_blocks_at_once():
    grown = request_of(range(10))
    grown.append_output_tokens(range(10, 64))
    assert grown.block_hashes == request_of(range(64)).block_hashes


def test_hashes_are_equal_in_processes_with_different_string_hash_seeds():
    script = (
        "from tests.control.kv.parts import request_of\n"
        "r = request_of(range(64), cache_salt='tenant')\n"
        "print([h.hex() for h in r.block_hashes])"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    here = [digest.hex() for digest in request_of(range(64), cache_salt="tenant").block_hashes]
    assert outputs == [f"{here}\n"] * 2


def test_a_salt_changes_every_block_but_is_a_key_of_the_first_only():
    plain = request_of(range(48)).block_hashes
    salted = request_of(range(48), cache_salt="s").block_hashes
    assert not set(plain) & set(salted)
    assert salted[0] == hash_block(NONE_HASH, list(range(16)), [("cache_salt", "s")])
    assert salted[1] == hash_block(salted[0], list(range(16, 32)))


def test_different_salts_differ_and_equal_salts_agree():
    first, second, third = (request_of(range(16), cache_salt=salt).block_hashes for salt in ("s", "t", "s"))
    assert first != second
    assert first == third


def test_an_empty_salt_is_not_the_same_as_none():
    assert request_of(range(16), cache_salt="").block_hashes != request_of(range(16)).block_hashes


def test_a_lora_adapter_is_a_key_of_every_block():
    request = FeatureRequest([], adapter=Adapter("french", "/adapters/french", "abc"))
    assert list(lora_keys(request, 0, 16)) == [("lora", "abc")]
    assert list(lora_keys(request, 16, 32)) == [("lora", "abc")]
    assert list(lora_keys(FeatureRequest([]), 0, 16)) == []


def test_a_multimodal_item_is_a_key_of_each_block_it_touches_with_its_offset_from_the_block():
    request = FeatureRequest([], items=[Item("cat", 10, 10), Item("dog", 20, 12)])
    assert list(multimodal_keys(request, 0, 16)) == [("mm", "cat", 10)]
    assert list(multimodal_keys(request, 16, 32)) == [("mm", "cat", -6), ("mm", "dog", 4)]
    assert list(multimodal_keys(request, 32, 48)) == []


def test_an_item_that_ends_at_a_border_does_not_touch_the_next_block():
    request = FeatureRequest([], items=[Item("cat", 0, 16)])
    assert list(multimodal_keys(request, 16, 32)) == []


def test_prompt_embeddings_are_a_key_of_the_blocks_that_have_some():
    request = FeatureRequest([], embeds=b"abcd")
    assert list(prompt_embeds_keys(request, 0, 2)) == [("prompt_embeds", hashlib.sha256(b"ab").digest())]
    assert list(prompt_embeds_keys(request, 4, 6)) == []


def test_keys_of_different_sources_with_the_same_words_do_not_collide():
    tokens = list(range(4))
    hashers = {
        "salt": FeatureRequest(tokens, cache_salt="x"),
        "lora": FeatureRequest(tokens, adapter=Adapter("", "", "x")),
        "item": FeatureRequest(tokens, items=[Item("x", 0, 4)]),
        "embeds": FeatureRequest(tokens, embeds=b"x"),
        "plain": FeatureRequest(tokens),
    }
    hasher = make_block_hasher(4, (cache_salt_keys, lora_keys, multimodal_keys, prompt_embeds_keys))
    assert len({hasher(request)[0] for request in hashers.values()}) == len(hashers)


def test_the_same_image_elsewhere_in_the_block_gives_another_hash():
    hasher = make_block_hasher(8, (multimodal_keys,))
    first, second = (hasher(FeatureRequest([0] * 8, items=[Item("cat", offset, 4)])) for offset in (0, 1))
    assert first != second


def test_a_hasher_needs_blocks_of_at_least_one_token():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        make_block_hasher(0)
