"""The Plan: what was decided, each entry with its reason. The second of *asked, decided, learnt*."""

from __future__ import annotations

import msgspec


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions made once, before anything is loaded; nobody changes them.

    dtypes are names (float32, bfloat16). ``quantization`` is how weights are held: none (dense, in ``dtype``), gguf
    (the file's block formats), int8 or int4; ``weight_bytes`` is the memory they take, a drafter's included, which are
    ``drafter_bytes``. ``adapter_bytes`` is what all LoRA adapters in memory take at most. ``max_model_len`` is None
    where it is fitted after memory profiling ("auto"). ``block_size`` is None where the attention backends choose.
    ``kv_cache_bytes`` is None where it is learnt from profiling. ``batch_invariant`` says whether outputs are bitwise
    the same in any batch.
    ``kernels`` is the backend of the ops (device/ops/table.py), ``cpu_isa`` the instruction set of native ones.
    Thread t of ``num_threads`` stays on ``pinned_cpus[t]`` where there are any.
    ``graph_capture`` says whether the forward pass is recorded at warm-up and replayed in one call.
    ``num_speculative_tokens`` are the most drafts of a request in a step, 0 where ``speculative_method`` is none.
    ``num_lookahead_tokens`` are slots behind a step's tokens that a drafter with a cache of its own fills.
    At most ``max_loras`` LoRA adapters run in a step (0: LoRA is off), and ``max_cpu_loras`` are kept in memory.
    ``runner`` is generate or pooling. ``reasons`` maps each field's name to one line.
    """

    device: str
    dtype: str
    quantization: str
    weight_bytes: int
    drafter_bytes: int
    adapter_bytes: int
    kv_cache_dtype: str
    attention_backend: str
    max_model_len: int | None
    block_size: int | None
    max_num_batched_tokens: int
    max_num_seqs: int
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    kv_cache_bytes: int | None
    memory_fraction: float | None
    kernels: str
    cpu_isa: str
    num_threads: int
    pinned_cpus: tuple[int, ...]
    max_steps_in_flight: int
    batch_invariant: bool
    graph_capture: bool
    runner: str
    speculative_method: str
    num_speculative_tokens: int
    max_loras: int
    max_cpu_loras: int
    num_lookahead_tokens: int
    reasons: dict[str, str]

    def explained(self) -> list[str]:
        """A line per decision: its name, its value and its reason."""
        return [f"{name} = {getattr(self, name)} ({reason})" for name, reason in self.reasons.items()]
