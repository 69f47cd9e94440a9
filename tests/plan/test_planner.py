"""Asked -> decided, as a table."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from octavo.config.flat import config_from_kwargs
from octavo.plan.native_ops import NATIVE_BLOCKS, OTHER_BLOCKS
from octavo.plan.plan import Plan
from octavo.plan.planner import make_plan
from octavo.words.device_caps import DeviceCaps
from octavo.words.drafter_facts import DrafterFacts
from octavo.words.errors import ConfigError, InsufficientMemoryError
from octavo.words.model_facts import ModelFacts, RopeFacts

GIB = 1 << 30
MIB = 1 << 20

PLAIN = DeviceCaps(device="cpu", name="Plain", num_threads=4, total_bytes=16 * GIB, available_bytes=8 * GIB)
MODERN = msgspec.structs.replace(PLAIN, name="Modern", fast_dtypes=("bfloat16", "float32"))

# 46,080 bytes of float32 KV per token and 8192 positions, as SmolLM2-135M has.
SMALL = ModelFacts(
    architecture="llama",
    source_architecture="LlamaForCausalLM",
    num_layers=30,
    hidden_size=576,
    intermediate_size=1536,
    num_heads=9,
    num_kv_heads=3,
    head_size=64,
    vocab_size=49152,
    max_position=8192,
    norm_eps=1e-5,
    rope=RopeFacts(rotary_dim=64),
    num_parameters=134_515_008,
)


def plan(*, facts: ModelFacts = SMALL, caps: DeviceCaps = PLAIN, **asked: Any) -> Plan:
    return make_plan(config_from_kwargs(**asked), facts, caps)


@pytest.mark.parametrize(
    ("asked", "decided"),
    [
        ({}, {"device": "cpu", "dtype": "float32", "kv_cache_dtype": "float32", "attention_backend": "reference"}),
        ({}, {"block_size": 32, "max_num_batched_tokens": 2048, "max_num_seqs": 128, "max_model_len": 8192}),
        ({}, {"enable_prefix_caching": True, "enable_chunked_prefill": True, "num_threads": 4}),
        ({}, {"max_steps_in_flight": 1, "batch_invariant": False, "memory_fraction": None}),
        ({"dtype": "bfloat16"}, {"dtype": "bfloat16", "kv_cache_dtype": "bfloat16"}),
        ({"kv_cache_dtype": "bfloat16"}, {"dtype": "float32", "kv_cache_dtype": "bfloat16"}),
        ({"max_model_len": 100}, {"max_model_len": 100}),
        ({"max_model_len": "auto"}, {"max_model_len": None}),
        ({"block_size": 1}, {"block_size": 1}),
        # A step holds a token of each request.
        ({"max_num_batched_tokens": 1}, {"max_num_batched_tokens": 1, "max_num_seqs": 1}),
        ({"max_num_batched_tokens": 64}, {"max_num_batched_tokens": 64, "max_num_seqs": 64}),
        ({"max_num_seqs": 4096}, {"max_num_batched_tokens": 4096, "max_num_seqs": 4096}),
        ({"max_num_seqs": 1, "max_num_batched_tokens": 1}, {"max_num_batched_tokens": 1, "max_num_seqs": 1}),
        # Without chunked prefill a prompt fits into one step.
        ({"enable_chunked_prefill": False}, {"max_num_batched_tokens": 8192, "enable_chunked_prefill": False}),
        ({"enable_chunked_prefill": False, "max_model_len": 100}, {"max_num_batched_tokens": 2048}),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 8192}, {"max_num_batched_tokens": 8192}),
        # KV memory: four requests of the longest length, within bounds.
        ({}, {"kv_cache_bytes": 4 * (8192 + 32) * 46_080}),
        ({"max_model_len": 64}, {"kv_cache_bytes": 256 * MIB}),
        ({"kv_cache_memory_bytes": "1MiB"}, {"kv_cache_bytes": MIB}),
        ({"gpu_memory_utilization": 0.5}, {"kv_cache_bytes": None, "memory_fraction": 0.5}),
        (
            {"gpu_memory_utilization": 0.5, "kv_cache_memory_bytes": 10**9},
            {"kv_cache_bytes": 10**9, "memory_fraction": None},
        ),
        ({"num_threads": 9}, {"num_threads": 9}),
        ({"enable_prefix_caching": False}, {"enable_prefix_caching": False}),
        (
            {"async_scheduling": True, "distributed_executor_backend": "simulated"},
            {"max_steps_in_flight": 2},
        ),
        (  # Without weights steps are simulated, whatever was to run them.
            {"async_scheduling": True, "load_format": "mock"},
            {"max_steps_in_flight": 2},
        ),
        ({"device": "cpu"}, {"device": "cpu"}),
    ],
)
def test_asked_and_decided(asked: dict[str, Any], decided: dict[str, Any]) -> None:
    made = msgspec.structs.asdict(plan(**asked))
    assert {name: made[name] for name in decided} == decided


def test_auto_dtype_is_bfloat16_where_the_cpu_has_a_unit_for_it() -> None:
    assert plan(caps=MODERN).dtype == "bfloat16"
    assert "no bfloat16 unit" in plan(caps=PLAIN).reasons["dtype"]


@pytest.mark.parametrize("stored", ["bfloat16", "float16", "q4_1", "q8_0", "f16"])
def test_where_float32_is_only_the_machines_choice_the_cache_is_bfloat16(stored: str) -> None:
    facts = msgspec.structs.replace(SMALL, stored_dtype=stored)
    made = plan(facts=facts)
    assert (made.dtype, made.kv_cache_dtype) == ("float32", "bfloat16")
    assert made.kv_cache_bytes == 4 * (8192 + 32) * 23_040
    assert stored in made.reasons["kv_cache_dtype"]


@pytest.mark.parametrize(
    ("stored", "asked"),
    [("float32", {}), ("f32", {}), ("q4_1", {"dtype": "float32"}), ("bfloat16", {"kv_cache_dtype": "float32"})],
)
def test_float32_that_is_asked_for_or_the_checkpoints_own_is_cached_whole(stored: str, asked: dict[str, Any]) -> None:
    made = plan(facts=msgspec.structs.replace(SMALL, stored_dtype=stored), **asked)
    assert (made.dtype, made.kv_cache_dtype) == ("float32", "float32")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"dtype": "float16"}, "dtype=float16 .*bfloat16, float32"),
        ({"max_model_len": 8193}, "8193 .*8192"),
        ({"max_num_seqs": 65, "max_num_batched_tokens": 64}, "max_num_batched_tokens=64 .*max_num_seqs=65"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 8191}, "8191 .*8192"),
        (
            {"enable_chunked_prefill": False, "max_model_len": "auto", "max_num_batched_tokens": 64},
            "max_num_batched_tokens=64 .*8192",
        ),
        ({"long_prefill_token_threshold": 101, "max_model_len": 100}, "101 .*100"),
        ({"async_scheduling": True}, "async_scheduling.*uni"),
        ({"trust_remote_code": True}, "never runs"),
    ],
)
def test_what_cannot_be_had_is_refused_with_its_numbers(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(**asked)


def test_every_decision_has_its_reason() -> None:
    made = plan()
    assert set(made.reasons) == set(Plan.__struct_fields__) - {"reasons"}
    assert all(made.reasons.values())


def test_a_lowered_limit_says_what_lowered_it() -> None:
    assert "max_num_batched_tokens=64" in plan(max_num_batched_tokens=64).reasons["max_num_seqs"]


def test_default_kv_memory_is_at_most_half_of_what_the_weights_leave() -> None:
    weights = SMALL.num_parameters * 4
    tight = msgspec.structs.replace(PLAIN, available_bytes=weights + 400 * MIB)
    assert plan(caps=tight).kv_cache_bytes == 200 * MIB
    assert plan(caps=tight, max_model_len=64).kv_cache_bytes == 200 * MIB


def test_windowed_layers_need_less_kv_memory() -> None:
    windowed = msgspec.structs.replace(SMALL, layer_types=("sliding_window",) * 25 + ("full",) * 5, sliding_window=512)
    token_bytes = 2 * 3 * 64 * 4
    per_request = (25 * (512 + 2048 + 32) + 5 * (8192 + 32)) * token_bytes
    assert plan(facts=windowed).kv_cache_bytes == 4 * per_request


def test_weights_that_do_not_fit_are_refused_before_loading() -> None:
    with pytest.raises(InsufficientMemoryError, match="dtype=bfloat16 halves it") as caught:
        plan(caps=msgspec.structs.replace(PLAIN, available_bytes=100 * MIB))
    assert caught.value.needed_bytes == SMALL.num_parameters * 4
    assert caught.value.available_bytes == 100 * MIB


def test_a_device_that_is_not_here_is_refused() -> None:
    with pytest.raises(ConfigError, match="device=cpu .*cuda"):
        plan(caps=msgspec.structs.replace(PLAIN, device="cuda"), device="cpu")


def test_making_a_plan_twice_gives_the_same_one() -> None:
    assert plan(max_num_seqs=3) == plan(max_num_seqs=3)


NATIVE = msgspec.structs.replace(PLAIN, has_native=True, isa=("avx", "f16c", "fma", "avx2"))

ZEN4 = msgspec.structs.replace(
    NATIVE,
    isa=(*NATIVE.isa, "avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"),
    fast_dtypes=("bfloat16", "float32"),
)


def test_where_there_is_a_bfloat16_unit_it_is_used() -> None:
    found = plan(caps=ZEN4)
    assert (found.dtype, found.cpu_isa, found.batch_invariant) == ("bfloat16", "avx512", True)
    assert plan(caps=ZEN4, cpu_isa="avx2").cpu_isa == "avx2"
    # Where the system gives no tiles, they are not among the features: platform/cpu.py asks for them.
    with_tiles = msgspec.structs.replace(ZEN4, isa=(*ZEN4.isa, "amx_tile", "amx_bf16", "amx_int8"))
    assert plan(caps=with_tiles).cpu_isa == "amx"
    assert plan(caps=with_tiles, cpu_isa="avx512").cpu_isa == "avx512"
    with pytest.raises(
        ConfigError, match="cpu_isa=amx cannot be had: .* can use generic, avx2, avx512; use one, or auto"
    ):
        plan(caps=ZEN4, cpu_isa="amx")
    without = msgspec.structs.replace(ZEN4, isa=ZEN4.isa[:-1], fast_dtypes=("float32",))
    assert (plan(caps=without).dtype, plan(caps=without).cpu_isa) == ("float32", "avx2")


@pytest.mark.parametrize(
    ("asked", "decided"),
    [
        ({}, {"kernels": "native", "cpu_isa": "avx2", "attention_backend": "cpu", "batch_invariant": True}),
        ({"dtype": "bfloat16"}, {"kernels": "native", "batch_invariant": True}),
        ({"cpu_isa": "generic"}, {"kernels": "native", "cpu_isa": "generic", "batch_invariant": True}),
        ({"kernels": "reference"}, {"cpu_isa": "none", "attention_backend": "reference", "batch_invariant": False}),
    ],
)
def test_the_compiled_library_is_used_where_it_is(asked: dict[str, Any], decided: dict[str, Any]) -> None:
    found = plan(caps=NATIVE, **asked)
    assert {name: getattr(found, name) for name in decided} == decided


def test_without_the_compiled_library_ops_run_on_the_reference() -> None:
    found = plan()
    assert (found.kernels, found.cpu_isa, found.batch_invariant) == ("reference", "none", False)
    assert "not installed" in found.reasons["kernels"]
    with pytest.raises(ConfigError, match="kernels=native cannot be had: the compiled library is not installed"):
        plan(kernels="native")


def test_an_op_on_plain_torch_is_named_where_it_spoils_batch_invariance() -> None:
    found = plan(caps=NATIVE, facts=msgspec.structs.replace(SMALL, head_size=12))
    assert (found.attention_backend, found.batch_invariant) == ("reference", False)
    assert "no, because paged_attention, qkv_rope_write" in found.reasons["batch_invariant"]
    found = plan(caps=NATIVE, block_size=24)
    assert (found.attention_backend, found.batch_invariant) == ("reference", False)
    assert "block sizes that are multiples of 16, not 24" in found.reasons["attention_backend"]


def test_an_instruction_set_the_cpu_lacks_is_refused_with_those_it_has() -> None:
    with pytest.raises(ConfigError, match="cpu_isa=avx2 cannot be had: Plain can use generic"):
        plan(cpu_isa="avx2")


GGUF = msgspec.structs.replace(
    SMALL, weight_format="gguf", weight_bytes=64_000, bytes_by_type={"Q4_K": 14_400, "Q8_0": 3_400, "F32": 400}
)


def test_a_gguf_file_stays_in_its_own_formats_where_kernels_read_them() -> None:
    made = plan(facts=GGUF, caps=NATIVE)
    assert (made.quantization, made.weight_bytes) == ("gguf", 14_800 + 3_400 + 400)
    assert "Q4_K, Q8_0, F32" in made.reasons["quantization"]
    assert made.batch_invariant
    half = plan(facts=GGUF, caps=NATIVE, dtype="bfloat16")
    assert half.weight_bytes == 14_800 + 3_400 + 200
    other = plan(facts=msgspec.structs.replace(GGUF, bytes_by_type={"Q2_K": 84_000}), caps=NATIVE)
    assert other.weight_bytes == 272_000
    assert "Q2_K, for which there are no kernels, as Q8_0" in other.reasons["quantization"]


def test_weights_are_dense_where_asked_or_where_there_is_no_other_way() -> None:
    for made in (plan(facts=GGUF, caps=NATIVE, quantization="none"), plan(facts=GGUF), plan(caps=NATIVE)):
        assert (made.quantization, made.weight_bytes) == ("none", 4 * SMALL.num_parameters)
    assert "native kernels" in plan(facts=GGUF).reasons["quantization"]


def test_weights_quantised_at_load_take_the_bytes_of_their_bits() -> None:
    vocab = SMALL.vocab_size * SMALL.hidden_size * (1 if SMALL.tie_word_embeddings else 2)
    layers = SMALL.num_parameters - vocab
    for facts in (SMALL, GGUF):
        assert plan(facts=facts, caps=NATIVE, quantization="int8").weight_bytes == SMALL.num_parameters
        assert plan(facts=facts, caps=NATIVE, quantization="int4").weight_bytes == int(vocab + layers * 20 / 32)


@pytest.mark.parametrize(
    ("facts", "caps", "quantization", "message"),
    [
        (SMALL, NATIVE, "gguf", "quantization=gguf cannot be had: the weights are not a GGUF file; use int8, int4"),
        (
            SMALL,
            PLAIN,
            "int8",
            "quantization=int8 cannot be had: it needs native kernels, and those here are ref",
        ),
        (GGUF, PLAIN, "gguf", "quantization=gguf cannot be had: it needs native kernels"),
        (SMALL, NATIVE, "awq", "quantization.*none, gguf, int8, int4"),
    ],
)
def test_a_quantization_that_cannot_be_had_is_one_clear_line(
    facts: ModelFacts, caps: DeviceCaps, quantization: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        plan(facts=facts, caps=caps, quantization=quantization)
    assert "\n" not in str(caught.value)


def test_block_sizes_are_those_of_the_files_and_of_the_library() -> None:
    packing = pytest.importorskip("octavo.device.ops.native.quantized")
    dequantize = pytest.importorskip("octavo.device.loader.gguf_dequant")
    assert tuple(NATIVE_BLOCKS) == packing.NATIVE_FORMATS
    stored = {kind: in_file for kind, (in_file, _) in (NATIVE_BLOCKS | OTHER_BLOCKS).items()}
    blocks = {kind: size[0] for kind, size in dequantize.BLOCK_SIZES.items() if size[1] > 1}
    assert stored == blocks


def test_threads_stay_on_cpus_that_are_ours_alone() -> None:
    shared = msgspec.structs.replace(PLAIN, has_native=True)
    alone = msgspec.structs.replace(shared, exclusive_cpus=(2, 3, 6, 7))
    assert plan(caps=shared).pinned_cpus == ()
    assert plan(caps=alone).pinned_cpus == (2, 3, 6, 7)
    assert plan(caps=alone, num_threads=2).pinned_cpus == (2, 3)
    assert plan(caps=alone, num_threads=5).pinned_cpus == ()
    assert plan(caps=alone, kernels="reference").pinned_cpus == ()


def test_as_many_adapters_are_kept_in_memory_as_run_unless_more_are_asked() -> None:
    assert plan().max_loras == plan(max_loras=3).max_loras == 0
    decided = plan(enable_lora=True, max_loras=3)
    assert (decided.max_loras, decided.max_cpu_loras) == (3, 3)
    assert plan(enable_lora=True, max_loras=3, max_cpu_loras=8).max_cpu_loras == 8


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"max_loras": 3, "max_cpu_loras": 2}, "max_cpu_loras=2 is below max_loras=3"),
        ({"runner": "pooling"}, "enable_lora=True cannot be had"),
        ({"load_format": "mock"}, "enable_lora=True cannot be had"),
    ],
)
def test_adapters_that_cannot_be_had_are_one_clear_line(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(enable_lora=True, **asked)


# Of all projections of one layer: query, key, value, output, gate, up, down.
INTO, OUT = 3 * 576 + 576 + 2 * 576 + 1536, 576 + 2 * 192 + 576 + 2 * 1536 + 576


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_have_their_memory_before_keys_and_values(dtype: str) -> None:
    item_bytes = 4 if dtype == "float32" else 2
    weights = SMALL.num_parameters * item_bytes
    caps = msgspec.structs.replace(PLAIN, available_bytes=weights + 600 * MIB)
    asked: dict[str, Any] = {"dtype": dtype, "max_model_len": 8192}
    # One that runs may be dropped from those in memory.
    each = 30 * 16 * (INTO + OUT) * item_bytes
    decided = plan(caps=caps, enable_lora=True, max_loras=3, max_cpu_loras=4, **asked)
    assert decided.adapter_bytes == 7 * each
    assert f"7 of rank 16 in {dtype}, {each:,} bytes each" in decided.reasons["adapter_bytes"]
    without = plan(caps=caps, **asked)
    assert without.adapter_bytes == 0
    assert decided.kv_cache_bytes == (600 * MIB - 7 * each) // 2
    narrow = plan(caps=caps, enable_lora=True, max_loras=3, max_cpu_loras=4, lora_dtype="bfloat16", **asked)
    assert narrow.adapter_bytes == 7 * 30 * 16 * (INTO + OUT) * 2
    assert "that the weights and adapters leave" in decided.reasons["kv_cache_bytes"]
    assert decided.weight_bytes == without.weight_bytes == weights


def test_native_adapters_are_padded_to_whole_lanes() -> None:
    decided = plan(caps=NATIVE, enable_lora=True, max_lora_rank=9, dtype="float32")
    assert decided.adapter_bytes == 2 * 30 * (16 * INTO + 9 * OUT) * 4


def test_adapters_that_do_not_fit_are_one_clear_line() -> None:
    with pytest.raises(InsufficientMemoryError, match=r"GiB for LoRA adapters.*lower max_cpu_loras or max_lora_rank"):
        plan(enable_lora=True, max_cpu_loras=1000)


def test_a_drafters_weights_are_a_known_part_of_all_weights() -> None:
    network = msgspec.structs.replace(SMALL, num_layers=2, num_parameters=1_000_000)
    config = config_from_kwargs(speculative_method="draft_model", speculative_model="x")
    decided = make_plan(config, SMALL, PLAIN, DrafterFacts(network=network))
    assert decided.drafter_bytes == 4_000_000
    assert decided.weight_bytes == 4 * SMALL.num_parameters + 4_000_000
    assert plan().drafter_bytes == 0
