"""Facts about the CPU and the memory of this machine, as far as this process may use them."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import resource
import sys
from pathlib import Path

from octavo.device.platform.cgroup import CgroupLimits, is_cpu_partition, read_cgroup_limits
from octavo.words.device_caps import DeviceCaps

# Instruction sets worth naming: those that decide a type or a kernel. Spelled as /proc/cpuinfo spells them.
_KNOWN_ISA = (
    "sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni",
    "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8", "asimd", "asimddp", "sve", "sve2", "svebf16",
    "i8mm", "bf16",
)  # fmt: skip
_BFLOAT16_UNITS = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"})
# Address space that torch maps when it is imported and computes (measured: 2.13 on x86-64), of which little is memory.
_RUNTIME_ADDRESS_SPACE = 1 << 30


def detect_cpu(root: Path = Path("/")) -> DeviceCaps:
    """The CPU as data. ``root`` replaces the file system's root in tests."""
    limits = read_cgroup_limits(root)
    total, available = memory_bytes(root, limits)
    isa = instruction_sets(root)
    return DeviceCaps(
        device="cpu",
        name=_cpu_name(root),
        num_threads=usable_threads(limits),
        total_bytes=total,
        available_bytes=available,
        isa=isa,
        fast_dtypes=("bfloat16", "float32") if _BFLOAT16_UNITS.intersection(isa) else ("float32",),
        has_native=has_native(),
        exclusive_cpus=exclusive_cpus(root),
    )


def usable_threads(limits: CgroupLimits) -> int:
    """CPUs in this process's affinity mask, cut to the whole CPUs of the cgroup's quota; at least 1."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(count, int(limits.cpus)) if limits.cpus is not None else count)


def exclusive_cpus(root: Path = Path("/")) -> tuple[int, ...]:
    """The CPUs of this process's affinity mask, if they are kept free of others; else none.

    The kernel does so for CPUs that it was started without (``isolcpus``), and for those of a cgroup that is a
    partition of its own ("Control Group v2", cpuset.cpus.partition).
    """
    if not hasattr(os, "sched_getaffinity"):
        return ()
    ours = sorted(os.sched_getaffinity(0))
    isolated = cpu_list(_text(root / "sys/devices/system/cpu/isolated"))
    return tuple(ours) if isolated.issuperset(ours) or is_cpu_partition(root) else ()


def cpu_list(text: str) -> set[int]:
    """Numbers as Linux lists them: 0,4-7."""
    ranges = [part.split("-") for part in text.strip().split(",") if part]
    return {cpu for numbers in ranges for cpu in range(int(numbers[0]), int(numbers[-1]) + 1)}


def memory_bytes(root: Path, limits: CgroupLimits) -> tuple[int, int]:
    """(total, available) bytes: the least of the machine's, the cgroup's and the address-space limit's."""
    machine = _meminfo(root)
    totals = [machine.get("MemTotal", 0), limits.memory_bytes]
    available = [machine.get("MemAvailable", machine.get("MemFree", 0)), limits.memory_left_bytes]
    limit, left = _address_space(root)
    return _least([*totals, limit]), _least([*available, left])


def instruction_sets(root: Path = Path("/")) -> tuple[str, ...]:
    """Known instruction sets this process may use: from the native module, else from /proc/cpuinfo."""
    found = _native_features() if root == Path("/") else None
    if found is None:
        match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", _text(root / "proc/cpuinfo"), re.MULTILINE)
        found = set(match[1].split()) if match else set()
    return tuple(name for name in _KNOWN_ISA if name in found)


def has_native() -> bool:
    """Whether the compiled module is installed; it is not loaded by asking."""
    return importlib.util.find_spec("octavo._native") is not None


def _native_features() -> set[str] | None:
    try:
        from octavo import _native
    except ImportError:
        return None
    return set(_native.cpu_features())


def _cpu_name(root: Path) -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", _text(root / "proc/cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else platform.machine() or "unknown CPU"


def _meminfo(root: Path) -> dict[str, int]:
    lines = re.findall(r"^(\w+):\s+(\d+) kB$", _text(root / "proc/meminfo"), re.MULTILINE)
    return {name: int(kilobytes) * 1024 for name, kilobytes in lines}


def _address_space(root: Path) -> tuple[int | None, int | None]:
    """(limit, what is left of it) where ``ulimit -v`` set one; room for torch is kept back if it is not loaded."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None, None
    mapped = re.search(r"^VmSize:\s+(\d+) kB$", _text(root / "proc/self/status"), re.MULTILINE)
    used = int(mapped[1]) * 1024 if mapped else 0
    reserve = 0 if "torch" in sys.modules else _RUNTIME_ADDRESS_SPACE
    return limit, max(0, limit - used - reserve)


def _least(numbers: list[int | None]) -> int:
    return min(number for number in numbers if number is not None)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
