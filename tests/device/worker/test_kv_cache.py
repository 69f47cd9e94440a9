from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch

from octavo.device.attention.backend import Support
from octavo.device.layers.attention import attention_layers
from octavo.device.worker.kv_cache import HUGE_PAGE, KVCache, kernel_block_size, layer_groups
from octavo.words.errors import UnsupportedError
from octavo.words.kv_cache_spec import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroup,
    KVCacheTensor,
    MambaSpec,
    SlidingWindowSpec,
)
from tests.device.worker.tiny_model import HEAD_SIZE, HEADS, TinyModel, kv_config


@dataclass
class Backend:
    name: str
    preferred_block_sizes: tuple[int, ...]
    support: Support = Support()


def allocate(config: KVCacheConfig) -> KVCache:
    return KVCache(config, layer_groups(config, attention_layers(TinyModel())))


def test_layers_of_two_groups_share_their_memory_block_by_block() -> None:
    cache = allocate(kv_config(block_size=4, num_blocks=6))
    full, window = cache.layers["full"], cache.layers["window"]
    assert full.shape == (2, 6, 4, HEADS, HEAD_SIZE)
    full[:], window[:, 3] = 1.0, 2.0
    assert torch.equal(full[:, 3], window[:, 3])
    assert (full == 2.0).sum() == full[:, 3].numel()


@pytest.mark.skipif(not os.path.exists("/sys/kernel/mm/transparent_hugepage"), reason="no huge pages on this system")
def test_large_caches_are_in_huge_pages_and_take_no_memory_before_they_are_written() -> None:
    before = psutil.Process().memory_info().rss
    cache = allocate(kv_config(block_size=64, num_blocks=600_000 // (HEADS * HEAD_SIZE)))
    address = cache.layers["full"].data_ptr()
    assert address % HUGE_PAGE == 0
    assert "hg" in flags_of(address)
    assert psutil.Process().memory_info().rss - before < 16 << 20
    assert not cache.layers["full"][:, -1].any()


def flags_of(address: int) -> list[str]:
    """What Linux has noted of the mapping that an address lies in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError("no such mapping")


def test_blocks_of_64_tokens_are_two_kernel_blocks_of_32() -> None:
    cache = allocate(kv_config(block_size=64, num_blocks=3))
    assert cache.layers["full"].shape == (2, 6, 32, HEADS, HEAD_SIZE)


def test_a_smaller_layer_pads_its_pages_and_still_meets_the_other_only_in_the_same_block() -> None:
    wide = FullAttentionSpec(block_size=4, num_kv_heads=2 * HEADS, head_size=HEAD_SIZE, dtype="float32")
    narrow = SlidingWindowSpec(
        block_size=4,
        num_kv_heads=HEADS,
        head_size=HEAD_SIZE,
        dtype="float32",
        sliding_window=5,
        page_size_padded=wide.page_bytes,
    )
    config = KVCacheConfig(
        num_blocks=5,
        groups=(KVCacheGroup(layer_names=("full",), spec=wide), KVCacheGroup(layer_names=("window",), spec=narrow)),
        tensors=(KVCacheTensor(size_bytes=5 * wide.page_bytes, layer_names=("full", "window")),),
        scheduler_block_size=4,
        hash_block_size=4,
        max_model_len=16,
    )
    cache = allocate(config)
    full, window = cache.layers["full"], cache.layers["window"]
    assert window.shape == (2, 5, 4, HEADS, HEAD_SIZE)
    full[:] = 0.0
    window[:, 2] = 1.0
    assert full[:, 2].sum() == window[:, 2].numel()
    assert full[:, [0, 1, 3, 4]].abs().max() == 0.0


def test_a_layer_that_shares_a_cache_gets_its_owners_view() -> None:
    config = kv_config()
    alone = KVCacheConfig(
        num_blocks=config.num_blocks,
        groups=config.groups[:1],
        tensors=(KVCacheTensor(size_bytes=config.tensors[0].size_bytes, layer_names=("full",)),),
        scheduler_block_size=4,
        hash_block_size=4,
        max_model_len=16,
        shared_layers={"window": "full"},
    )
    cache = allocate(alone)
    assert cache.layers["window"].data_ptr() == cache.layers["full"].data_ptr()
    (group,) = layer_groups(alone, attention_layers(TinyModel()))
    assert list(group.layers) == ["full", "window"]


def test_a_kind_of_cache_without_tensors_is_refused_by_name() -> None:
    spec = MambaSpec(block_size=4, shapes=((2, 2),), dtypes=("float32",))
    config = KVCacheConfig(
        num_blocks=2,
        groups=(KVCacheGroup(layer_names=("full",), spec=spec),),
        tensors=(),
        scheduler_block_size=4,
        hash_block_size=4,
        max_model_len=16,
    )
    with pytest.raises(UnsupportedError, match="MambaSpec"):
        allocate(config)


@pytest.mark.parametrize(
    ("block_size", "preferred", "expected"),
    [(32, (32, 16, 64), 32), (64, (32, 16, 64), 32), (48, (32, 16), 16), (7, (32, 16), 7), (128, (64,), 64)],
)
def test_kernel_blocks_are_the_most_preferred_that_divide_the_block(
    block_size: int, preferred: tuple[int, ...], expected: int
) -> None:
    assert kernel_block_size(block_size, [Backend("one", preferred)]) == expected


def test_kernel_blocks_suit_every_backend_of_the_group() -> None:
    backends = [Backend("one", (16, 32)), Backend("two", (32,), Support(block_size_multiple=32))]
    assert kernel_block_size(64, backends) == 32
    with pytest.raises(UnsupportedError, match="two: needs a multiple of 32"):
        kernel_block_size(16, backends)
