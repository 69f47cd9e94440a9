"""Facts about the machine, as data: what the Plan is decided from."""

from __future__ import annotations

import msgspec


class DeviceCaps(msgspec.Struct, frozen=True, kw_only=True):
    """One device. ``isa`` names instruction sets (avx2, avx512f, avx512_bf16, ...); bytes are what we may use.

    ``available_bytes`` is the smallest of free memory and what the cgroup still allows. ``has_native`` says that
    the compiled op library is importable. ``fast_dtypes`` are the float types with a hardware unit, best first.
    ``exclusive_cpus`` are the CPUs we may use, if nobody else's programs run on them.
    """

    device: str
    name: str
    num_threads: int
    total_bytes: int
    available_bytes: int
    isa: tuple[str, ...] = ()
    fast_dtypes: tuple[str, ...] = ("float32",)
    supported_dtypes: tuple[str, ...] = ("bfloat16", "float32")
    has_native: bool = False
    exclusive_cpus: tuple[int, ...] = ()
