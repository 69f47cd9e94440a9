from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.device.platform.cgroup import CgroupLimits
from octavo.device.platform.cpu import (
    cpu_list,
    detect_cpu,
    exclusive_cpus,
    instruction_sets,
    memory_bytes,
    usable_threads,
)
from octavo.device.platform.detect import DETECTORS, detect_caps
from octavo.util.lazy import resolve
from octavo.words.errors import UnsupportedError

GIB = 1 << 30


def machine(root: Path, *, flags: str = "fpu avx avx2 fma f16c", available_kb: int = 8 << 20) -> Path:
    proc = root / "proc"
    proc.mkdir()
    (proc / "cpuinfo").write_text(f"processor\t: 0\nmodel name\t: Test CPU\nflags\t\t: {flags}\n\n")
    (proc / "meminfo").write_text(f"MemTotal: {16 << 20} kB\nMemFree: 1 kB\nMemAvailable: {available_kb} kB\n")
    return root


def test_facts_are_read_as_data(tmp_path: Path) -> None:
    caps = detect_cpu(machine(tmp_path))
    assert (caps.device, caps.name, caps.isa) == ("cpu", "Test CPU", ("avx", "f16c", "fma", "avx2"))
    assert (caps.total_bytes, caps.available_bytes) == (16 * GIB, 8 * GIB)
    assert caps.num_threads >= 1


@pytest.mark.parametrize(
    ("flags", "best"),
    [
        ("avx2", "float32"),
        ("avx2 avx512f", "float32"),
        ("avx512f avx512_bf16", "bfloat16"),
        ("amx_tile amx_bf16", "bfloat16"),
    ],
)
def test_bfloat16_is_fast_only_with_a_unit_for_it(tmp_path: Path, flags: str, best: str) -> None:
    assert detect_cpu(machine(tmp_path, flags=flags)).fast_dtypes[0] == best


def test_cpus_are_exclusive_where_the_kernel_keeps_others_away(tmp_path: Path) -> None:
    ours = tuple(sorted(os.sched_getaffinity(0)))
    assert exclusive_cpus(machine(tmp_path)) == ()
    isolated = tmp_path / "sys/devices/system/cpu/isolated"
    isolated.parent.mkdir(parents=True)
    isolated.write_text("4000-4003\n")
    assert exclusive_cpus(tmp_path) == ()
    isolated.write_text(",".join(map(str, ours)) + ",4000-4003\n")
    assert exclusive_cpus(tmp_path) == ours
    assert detect_cpu(tmp_path).exclusive_cpus == ours


@pytest.mark.parametrize(("partition", "is_ours"), [("member", False), ("root", True), ("isolated", True)])
def test_cpus_of_a_cgroup_partition_are_exclusive(tmp_path: Path, partition: str, is_ours: bool) -> None:
    machine(tmp_path)
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/cgroup").write_text("0::/serving/octavo\n")
    folder = tmp_path / "sys/fs/cgroup/serving"
    folder.mkdir(parents=True)
    (folder / "cpuset.cpus.partition").write_text(partition + "\n")
    assert bool(exclusive_cpus(tmp_path)) is is_ours


def test_lists_of_cpus_are_read_as_linux_writes_them() -> None:
    assert cpu_list("0,4-7,9\n") == {0, 4, 5, 6, 7, 9}
    assert cpu_list("\n") == set()


def test_the_tightest_memory_limit_counts(tmp_path: Path) -> None:
    limits = CgroupLimits(memory_bytes=4 * GIB, memory_left_bytes=3 * GIB)
    assert memory_bytes(machine(tmp_path), limits) == (4 * GIB, 3 * GIB)


def test_an_address_space_limit_counts() -> None:
    script = "from octavo.device.platform.detect import detect_caps; print(detect_caps().available_bytes)"
    limited = subprocess.run(
        ["bash", "-c", f"ulimit -v {3 << 20}; exec {sys.executable} -c '{script}'"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert 0 < int(limited.stdout) < 2 * GIB  # 3 GiB, less what is mapped, less what torch will map


def test_threads_are_cut_to_the_quota() -> None:
    affinity = len(os.sched_getaffinity(0))
    assert usable_threads(CgroupLimits()) == affinity
    assert usable_threads(CgroupLimits(cpus=1.9)) == 1
    assert usable_threads(CgroupLimits(cpus=0.5)) == 1
    assert usable_threads(CgroupLimits(cpus=1000.0)) == affinity


def test_the_native_module_agrees_with_the_kernel() -> None:
    pytest.importorskip("octavo._native", reason="built without the native module")
    text = Path("/proc/cpuinfo").read_text()
    kernel = set(text.partition("flags")[2].partition("\n")[0].split())
    found = instruction_sets()
    if not kernel:
        pytest.skip("this kernel lists no flags")
    # The kernel may list what it does not let us use (AMX without permission), never the other way round.
    assert set(found) <= kernel
    assert ("avx2" in found) == ("avx2" in kernel)


def test_every_device_of_the_table_is_detected() -> None:
    for name, where in DETECTORS.items():
        assert resolve(where)().device == name
    assert detect_caps("auto").available_bytes > 0


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="'tpu'.*cpu"):
        detect_caps("tpu")
