from __future__ import annotations

import msgspec
import pytest

from octavo.words.kv_cache_spec import (
    AnyKVCacheSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
)

HEADS = {"block_size": 16, "num_kv_heads": 3, "head_size": 64, "dtype": "bfloat16"}
FULL = FullAttentionSpec(**HEADS)
WINDOW = SlidingWindowSpec(**HEADS, sliding_window=512)
MAMBA = MambaSpec(block_size=16, shapes=((4, 8), (2, 2)), dtypes=("float32", "bfloat16"))
SPECS = [
    FULL,
    WINDOW,
    MAMBA,
    ChunkedLocalAttentionSpec(**HEADS, chunk_size=128),
    MLAAttentionSpec(**HEADS),
    SinkFullAttentionSpec(**HEADS, sink_len=16),
    CrossAttentionSpec(**HEADS, max_encoder_tokens=1500),
    EncoderOnlyAttentionSpec(**HEADS),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_every_kind_survives_the_wire(spec: AnyKVCacheSpec) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=AnyKVCacheSpec) == spec


def test_int8_pages_count_their_scales() -> None:
    int8 = FullAttentionSpec(**HEADS | {"dtype": "int8"})
    assert int8.page_bytes == 2 * 16 * 3 * (64 + 4)
    assert MLAAttentionSpec(**HEADS | {"dtype": "int8"}).page_bytes == 16 * 3 * 64


def test_smollm2_takes_23040_bytes_a_token_in_bfloat16() -> None:
    assert 30 * FULL.page_bytes // FULL.block_size == 23_040


def test_a_latent_cache_keeps_one_vector_a_token() -> None:
    assert MLAAttentionSpec(**HEADS).page_bytes * 2 == FULL.page_bytes


def test_mamba_state_is_one_block_whatever_the_length() -> None:
    assert MAMBA.page_bytes == 4 * 8 * 4 + 2 * 2 * 2
    assert MAMBA.max_blocks_per_request(10**6, 2048) == 1


def test_padding_overrides_the_natural_page() -> None:
    padded = msgspec.structs.replace(MAMBA, page_size_padded=4096)
    assert (padded.page_bytes, padded.natural_page_bytes) == (4096, MAMBA.natural_page_bytes)


@pytest.mark.parametrize(
    ("max_model_len", "in_flight", "blocks"),
    [(8192, 1, 33), (8192, 2048, 161), (400, 2048, 25), (16, 1, 1)],
)
def test_a_window_holds_its_tokens_plus_those_in_flight_and_one_border_block(
    max_model_len: int, in_flight: int, blocks: int
) -> None:
    assert WINDOW.max_blocks_per_request(max_model_len, in_flight) == blocks


def test_kinds_that_are_never_prefix_cached() -> None:
    assert [type(spec).__name__ for spec in SPECS if not spec.is_prefix_cacheable] == [
        "MambaSpec",
        "CrossAttentionSpec",
        "EncoderOnlyAttentionSpec",
    ]
