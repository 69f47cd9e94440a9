from __future__ import annotations

import logging
import math

import pytest

from octavo.control.kv.capacity import max_blocks_per_request
from octavo.control.kv.manager import KVCacheManager
from octavo.control.kv.planning import (
    KVCacheLimits,
    RankNeeds,
    group_layers,
    kv_bytes_per_token,
    make_pages_equal,
    max_concurrency,
    plan_kv_cache,
    plan_kv_caches,
    resolve_block_sizes,
)
from octavo.words.errors import ConfigError, InsufficientMemoryError
from octavo.words.kv_cache_spec import (
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
)
from tests.control.kv.parts import chunked, full, window

PAGE = 2 * 16 * 8 * 4  # bytes of one block of full(): keys and values x 16 tokens x 8 entries x float32


def layers(spec, num_layers, prefix="layer"):
    return {f"{prefix}{i}": spec for i in range(num_layers)}


def plan(specs, num_blocks=1000, **options):
    """Plan with memory for ``num_blocks`` blocks of ``PAGE`` bytes in every layer."""
    shared = options.get("shared_layers", {})
    memory = num_blocks * PAGE * len([name for name in specs if name not in shared])
    ranks = ("available_bytes", "shared_layers", "drafter_specs")
    of_rank = {name: options.pop(name) for name in ranks if name in options}
    rank = RankNeeds(specs=specs, **{"available_bytes": memory, **of_rank})
    defaults = {"max_model_len": 100, "model_max_len": 4096, "max_num_batched_tokens": 2048}
    return plan_kv_cache(rank, KVCacheLimits(**{**defaults, **options}))


def gemma_like(num_sliding=15, num_full=3):
    return {**layers(window(512), num_sliding, "sliding"), **layers(full(), num_full, "full")}


def test_equal_layers_make_one_group_with_a_tensor_each():
    config = plan(layers(full(), 4), num_blocks=11)
    assert [(group.layer_names, group.spec) for group in config.groups] == [
        (("layer0", "layer1", "layer2", "layer3"), full())
    ]
    assert config.num_blocks == 11
    assert [(t.size_bytes, t.layer_names) for t in config.tensors] == [(11 * PAGE, (f"layer{i}",)) for i in range(4)]
    assert (config.scheduler_block_size, config.hash_block_size, config.max_model_len) == (16, 16, 100)


def test_blocks_are_what_memory_holds_rounded_down():
    assert plan(layers(full(), 3), available_bytes=3 * PAGE * 12 - 1).num_blocks == 11


def test_layers_of_two_kinds_are_dealt_into_groups_as_large_as_the_rarer_kind():
    config = plan(gemma_like())
    assert [len(group.layer_names) for group in config.groups] == [3] * 6
    assert config.groups[0].layer_names == ("sliding0", "sliding5", "sliding10")
    assert [type(group.spec) for group in config.groups] == [SlidingWindowSpec] * 5 + [FullAttentionSpec]


def test_each_tensor_is_shared_by_one_layer_of_every_group():
    config = plan(gemma_like(), num_blocks=7, max_model_len=16)
    assert len(config.tensors) == 3
    assert config.tensors[1].layer_names == ("sliding5", "sliding6", "sliding7", "sliding8", "sliding9", "full1")
    # Memory for 7 blocks in each of 18 layers makes 42 blocks of 3 layers.
    assert config.num_blocks == 42
    assert sum(tensor.size_bytes for tensor in config.tensors) == 18 * 7 * PAGE


def test_kinds_of_nearly_equal_number_make_two_groups_of_the_larger_size(caplog):
    config = plan(gemma_like(10, 8))
    assert [len(group.layer_names) for group in config.groups] == [10, 8]
    assert "2 groups of 10 layers for 18 layers; 10 % of the cache stays unused" in caplog.text


def test_kinds_that_differ_by_half_or_more_make_groups_of_the_smaller_size():
    assert [len(group.layer_names) for group in group_layers(gemma_like(11, 8))] == [11, 8]
    assert [len(group.layer_names) for group in group_layers(gemma_like(12, 8))] == [6, 6, 8]


def test_groups_that_do_not_come_out_even_warn_about_unused_pages(caplog):
    groups = group_layers(gemma_like(22, 4))
    assert [len(group.layer_names) for group in groups] == [4, 4, 4, 4, 3, 3, 4]
    assert "7 % of the cache stays unused" in caplog.text


def test_groups_that_come_out_even_warn_about_nothing(caplog):
    plan(gemma_like())
    assert caplog.text == ""


def test_small_pages_get_more_tokens_per_block():
    equal = make_pages_equal({"small": window(64), "large": full(num_kv_heads=4)})
    assert (equal["small"].block_size, equal["large"].block_size) == (64, 16)
    assert equal["small"].page_bytes == equal["large"].page_bytes == 4 * PAGE


def test_pages_that_do_not_divide_are_padded_and_that_is_said(caplog):
    equal = make_pages_equal({"small": window(64, num_kv_heads=2), "large": full(num_kv_heads=3)})
    assert (equal["small"].block_size, equal["small"].page_bytes) == (16, 3 * PAGE)
    assert f"layer small: KV pages padded from {2 * PAGE} to {3 * PAGE} bytes" in caplog.text


def test_attention_blocks_grow_until_a_recurrent_state_fits_and_the_state_is_padded():
    state = MambaSpec(block_size=16, shapes=((5 * PAGE // 8,),), dtypes=("float32",))  # 2.5 pages
    equal = make_pages_equal({"attention": full(), "state": state})
    assert equal["attention"].block_size == 48
    assert equal["state"].page_bytes == equal["attention"].page_bytes == 3 * PAGE


def test_block_sizes_of_unequal_groups_give_lcm_for_the_scheduler_and_gcd_for_hashes():
    config = plan({"small": window(64), "large": full(num_kv_heads=4)})
    assert (config.scheduler_block_size, config.hash_block_size) == (64, 16)
    assert resolve_block_sizes([full(24), full(16)], enable_caching=True) == (16, 48, 8)


def test_without_caching_hashes_have_the_schedulers_block_size():
    assert resolve_block_sizes([full(24), full(16)], enable_caching=False) == (16, 48, 48)


def test_groups_that_are_never_cached_do_not_split_the_hash_blocks():
    state = MambaSpec(block_size=24, shapes=((4,),), dtypes=("float32",))
    assert resolve_block_sizes([full(16), state], enable_caching=True) == (16, 48, 16)
    assert resolve_block_sizes([state], enable_caching=True) == (24, 24, 24)


def test_context_parallel_ranks_multiply_every_block_size():
    assert resolve_block_sizes([full(16)], enable_caching=True, context_parallel=4) == (64, 64, 64)
    assert resolve_block_sizes([full(24), full(16)], enable_caching=True, context_parallel=2) == (32, 96, 16)


@pytest.mark.parametrize(
    ("asked", "preferred", "block_size"), [(64, (32, 16), 64), (None, (32, 16), 32), (None, (), 16), (1, (32,), 1)]
)
def test_block_size_is_what_was_asked_then_what_backends_prefer_then_what_layers_state(asked, preferred, block_size):
    config = plan(layers(full(), 2), block_size=asked, preferred_block_sizes=preferred)
    assert config.groups[0].spec.block_size == config.scheduler_block_size == block_size


def test_disable_hybrid_serves_windows_and_chunks_as_full_attention_in_one_group():
    config = plan({**gemma_like(), "chunked": chunked(64)}, disable_hybrid=True)
    assert len(config.groups) == 1
    assert len(config.groups[0].layer_names) == 19
    assert config.groups[0].spec == full()


def test_disable_hybrid_keeps_the_window_where_all_layers_have_the_same():
    config = plan(layers(window(512), 4), disable_hybrid=True)
    spec = config.groups[0].spec
    assert (type(spec), spec.sliding_window) == (FullAttentionSpec, 512)


def test_layers_that_share_a_cache_take_no_memory():
    specs = layers(full(), 4)
    config = plan(specs, num_blocks=11, shared_layers={"layer2": "layer0", "layer3": "layer2"})
    assert config.groups[0].layer_names == ("layer0", "layer1")
    assert len(config.tensors) == 2
    assert config.shared_layers == {"layer2": "layer0", "layer3": "layer0"}
    assert config.num_blocks == 11


def test_a_layer_that_shares_need_not_state_a_spec():
    config = plan(layers(full(), 2), shared_layers={"extra": "layer1"})
    assert config.shared_layers == {"extra": "layer1"}


@pytest.mark.parametrize("shared", [{"layer1": "gone"}, {"layer1": "layer0", "layer0": "layer1"}])
def test_sharing_with_a_layer_that_has_no_cache_is_refused(shared):
    with pytest.raises(
        ConfigError, match="layer 'layer.' shares the KV cache of '.*', which has none of its own on this rank"
    ):
        plan(layers(full(), 2), shared_layers=shared)


def test_encoder_layers_keep_nothing_and_a_model_of_them_has_only_the_null_block():
    encoder = EncoderOnlyAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype="float32")
    config = plan(layers(encoder, 3), max_model_len=None)
    assert (config.groups, config.tensors, config.num_blocks, config.max_model_len) == ((), (), 1, 4096)
    assert max_concurrency(config, max_num_batched_tokens=2048) == math.inf


def test_sinks_must_fill_whole_blocks():
    sink = SinkFullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype="float32", sink_len=24)
    with pytest.raises(ConfigError, match="'layer0' has 24 sink tokens, which is no multiple of the block size 16"):
        plan(layers(sink, 1))


def test_one_block_is_kept_back_for_the_null_block():
    assert plan(layers(full(), 2), num_blocks=11, max_model_len=160).max_model_len == 160
    with pytest.raises(InsufficientMemoryError):
        plan(layers(full(), 2), num_blocks=11, max_model_len=161)


def test_a_request_that_does_not_fit_is_an_error_naming_needed_available_and_longest():
    with pytest.raises(InsufficientMemoryError) as caught:
        plan(layers(full(), 2), num_blocks=11, max_model_len=4096)
    error = caught.value
    assert (error.needed_bytes, error.available_bytes) == (257 * 2 * PAGE, 11 * 2 * PAGE)
    assert str(error) == (
        f"a request of 4096 tokens needs {257 * 2 * PAGE} bytes (0.5 MiB) of KV cache, "
        f"{11 * 2 * PAGE} bytes (0.0 MiB) are available; the longest length that fits is 160 tokens: lower "
        "max_model_len to 160 (or auto), or give the cache more memory (kv_cache_memory_bytes or "
        "gpu_memory_utilization)"
    )


def test_memory_of_the_needed_bytes_is_enough_and_one_byte_less_is_not():
    specs = gemma_like()
    with pytest.raises(InsufficientMemoryError) as caught:
        plan(specs, available_bytes=0, max_model_len=3000)
    needed = caught.value.needed_bytes
    assert plan(specs, available_bytes=needed, max_model_len=3000).max_model_len == 3000
    with pytest.raises(InsufficientMemoryError):
        plan(specs, available_bytes=needed - 1, max_model_len=3000)


def test_auto_fits_the_longest_length_of_the_model_that_memory_holds():
    assert plan(layers(full(), 2), num_blocks=11, max_model_len=None).max_model_len == 160
    assert plan(layers(full(), 2), num_blocks=1000, max_model_len=None).max_model_len == 4096


def test_auto_with_windows_agrees_with_the_check():
    specs = gemma_like()
    config = plan(specs, num_blocks=40, max_model_len=None, max_num_batched_tokens=64)
    assert 512 < config.max_model_len < 4096
    plan(specs, num_blocks=40, max_model_len=config.max_model_len, max_num_batched_tokens=64)
    with pytest.raises(InsufficientMemoryError, match=f"longest length that fits is {config.max_model_len} tokens"):
        plan(specs, num_blocks=40, max_model_len=config.max_model_len + 1, max_num_batched_tokens=64)


@pytest.mark.parametrize("num_blocks", [0, 1])
def test_auto_without_room_for_one_token_is_an_error(num_blocks):
    with pytest.raises(InsufficientMemoryError, match="not even one token fits"):
        plan(layers(full(), 2), num_blocks=num_blocks, max_model_len=None)


def test_an_override_of_the_number_of_blocks_skips_the_check_with_a_warning(caplog):
    config = plan(layers(full(), 2), num_blocks=5, max_model_len=2048, num_blocks_override=41)
    assert (config.num_blocks, config.num_usable_blocks, config.max_model_len) == (41, 40, 2048)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "41 KV blocks hold at most 640 tokens of a request, less than max_model_len=2048" in caplog.text


def test_an_override_that_suffices_warns_about_nothing(caplog):
    plan(layers(full(), 2), max_model_len=640, num_blocks_override=41)
    assert caplog.text == ""


def test_auto_fits_to_an_override():
    assert plan(layers(full(), 2), max_model_len=None, num_blocks_override=41).max_model_len == 640


def test_capacity_is_the_same_at_start_up_and_at_run_time():
    config = plan(gemma_like(), num_blocks=40, max_model_len=None, max_num_batched_tokens=64)
    manager = KVCacheManager(config, enable_caching=True, max_num_batched_tokens=64)
    assert manager.max_tokens_that_fit == config.max_model_len
    assert manager.can_ever_fit(config.max_model_len)
    assert not manager.can_ever_fit(config.max_model_len + 1)


def test_concurrency_is_how_often_the_longest_request_fits():
    config = plan(layers(full(), 2), num_blocks=71, max_model_len=320)
    assert max_concurrency(config, max_num_batched_tokens=2048) == 3.5


def test_bytes_per_token_are_those_of_all_layers_with_a_cache_of_their_own():
    smol = FullAttentionSpec(block_size=32, num_kv_heads=3, head_size=64, dtype="bfloat16")
    assert kv_bytes_per_token(layers(smol, 30)) == 23_040
    encoder = EncoderOnlyAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype="float32")
    assert kv_bytes_per_token({**layers(full(), 3), "encoder": encoder}, {"layer2": "layer0"}) == 2 * PAGE // 16


def limits(**options):
    return KVCacheLimits(**{"max_model_len": 100, "model_max_len": 4096, "max_num_batched_tokens": 2048, **options})


def test_every_rank_gets_the_blocks_of_the_poorest():
    ranks = [RankNeeds(specs=layers(full(), 2), available_bytes=n * 2 * PAGE) for n in (30, 20, 40)]
    configs = plan_kv_caches(ranks, limits())
    assert [config.num_blocks for config in configs] == [20, 20, 20]
    assert configs[0] == configs[1] == configs[2]


def test_auto_fits_to_the_poorest_rank():
    ranks = [RankNeeds(specs=layers(full(), 2), available_bytes=n * 2 * PAGE) for n in (30, 11)]
    assert [config.max_model_len for config in plan_kv_caches(ranks, limits(max_model_len=None))] == [160, 160]


def test_ranks_that_disagree_about_a_layer_are_refused():
    ranks = [RankNeeds(specs={"layer0": full(num_kv_heads=n)}, available_bytes=1 << 20) for n in (1, 2)]
    with pytest.raises(ConfigError, match="ranks disagree about the KV cache of layer 'layer0'"):
        plan_kv_caches(ranks, limits())


def test_pipeline_stages_share_groups_and_hold_only_their_own_layers():
    everything = list(gemma_like().items())
    stages = [
        dict(item for i, item in enumerate(everything) if i % 2 == 0),
        dict(item for i, item in enumerate(everything) if i % 2 == 1),
    ]
    configs = plan_kv_caches([RankNeeds(specs=stage, available_bytes=1 << 22) for stage in stages], limits())
    assert len({config.num_blocks for config in configs}) == 1
    for config, stage in zip(configs, stages, strict=True):
        assert len(config.groups) == 6
        assert sorted(name for group in config.groups for name in group.layer_names) == sorted(stage)
        assert sorted(name for tensor in config.tensors for name in tensor.layer_names) == sorted(stage)
        assert sum(tensor.size_bytes for tensor in config.tensors) <= 1 << 22


def test_a_stage_without_cache_layers_limits_nothing():
    ranks = [
        RankNeeds(specs=layers(full(), 2), available_bytes=20 * 2 * PAGE),
        RankNeeds(specs={}, available_bytes=0),
    ]
    first, second = plan_kv_caches(ranks, limits())
    assert (first.num_blocks, second.num_blocks) == (20, 20)
    assert (second.groups[0].layer_names, second.tensors) == ((), ())


def test_a_plan_never_exceeds_the_memory_given():
    for num_blocks in range(10, 60, 7):
        memory = num_blocks * 18 * PAGE + 123
        config = plan(gemma_like(), available_bytes=memory, max_model_len=None)
        assert sum(tensor.size_bytes for tensor in config.tensors) <= memory
        specs = [group.spec for group in config.groups]
        assert max_blocks_per_request(specs, config.max_model_len, 2048) <= config.num_usable_blocks


def test_a_drafter_has_pages_under_the_numbers_of_a_groups_blocks():
    drafter = layers(full(num_kv_heads=2), 2, "drafter")
    config = plan(layers(full(), 4), num_blocks=24, drafter_specs=drafter)
    assert config.drafter is not None and config.drafter_follows == 0
    # Two layers of twice the bytes beside four: as much again.
    assert config.num_blocks == config.drafter.num_blocks == 12
    (group,) = config.drafter.groups
    assert (group.layer_names, group.spec) == (("drafter0", "drafter1"), full(num_kv_heads=2))
    assert [tensor.size_bytes for tensor in config.drafter.tensors] == [12 * 2 * PAGE] * 2


def test_a_drafter_follows_layers_that_keep_every_token_and_keeps_them_too():
    config = plan(gemma_like(), drafter_specs=layers(window(64), 1, "drafter"))
    assert config.drafter is not None
    assert isinstance(config.groups[config.drafter_follows].spec, FullAttentionSpec)
    assert isinstance(config.drafter.groups[0].spec, FullAttentionSpec)
    with pytest.raises(ConfigError, match="none of its layers keeps every token"):
        plan(layers(window(512), 3), drafter_specs=layers(full(), 1, "drafter"))
