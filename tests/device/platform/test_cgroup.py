from __future__ import annotations

from pathlib import Path

import pytest

from octavo.device.platform.cgroup import CgroupLimits, read_cgroup_limits

MIB = 1 << 20


def machine(root: Path, membership: str, files: dict[str, str]) -> Path:
    """A file system root on which this process is in the group ``membership``."""
    for name, text in {"proc/self/cgroup": membership, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_machine_without_groups_limits_nothing(tmp_path: Path) -> None:
    assert read_cgroup_limits(tmp_path) == CgroupLimits()


def test_v2_limits_of_the_group_are_read(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "0::/pod\n",
        {
            "sys/fs/cgroup/pod/memory.max": f"{512 * MIB}\n",
            "sys/fs/cgroup/pod/memory.current": f"{200 * MIB}\n",
            "sys/fs/cgroup/pod/memory.stat": f"anon 5\ninactive_file {50 * MIB}\n",
            "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
        },
    )
    assert read_cgroup_limits(root) == CgroupLimits(memory_bytes=512 * MIB, memory_left_bytes=362 * MIB, cpus=1.5)


def test_a_parent_s_tighter_limit_counts(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "0::/a/b\n",
        {
            "sys/fs/cgroup/a/memory.max": f"{100 * MIB}",
            "sys/fs/cgroup/a/memory.current": f"{90 * MIB}",
            "sys/fs/cgroup/a/b/memory.max": f"{400 * MIB}",
            "sys/fs/cgroup/a/b/memory.current": f"{10 * MIB}",
            "sys/fs/cgroup/a/cpu.max": "max 100000",
            "sys/fs/cgroup/a/b/cpu.max": "400000 100000",
        },
    )
    assert read_cgroup_limits(root) == CgroupLimits(memory_bytes=100 * MIB, memory_left_bytes=10 * MIB, cpus=4.0)


def test_v1_limits_are_read_and_its_no_limit_is_understood(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n",
        {
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(64 * MIB),
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(80 * MIB),
            "sys/fs/cgroup/memory/job/memory.stat": f"total_inactive_file {30 * MIB}\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "200000",
            "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
    )
    assert read_cgroup_limits(root) == CgroupLimits(memory_bytes=64 * MIB, memory_left_bytes=14 * MIB, cpus=2.0)


def test_a_path_of_the_host_falls_back_to_the_mount(tmp_path: Path) -> None:
    """Inside a container /proc/self/cgroup may show a path that exists on the host only."""
    root = machine(
        tmp_path,
        "0::/host/only/path\n",
        {"sys/fs/cgroup/memory.max": str(32 * MIB), "sys/fs/cgroup/memory.current": "0"},
    )
    assert read_cgroup_limits(root).memory_bytes == 32 * MIB


@pytest.mark.parametrize("text", ["max", "", "garbage"])
def test_files_that_say_no_number_limit_nothing(tmp_path: Path, text: str) -> None:
    root = machine(tmp_path, "0::/\n", {"sys/fs/cgroup/memory.max": text, "sys/fs/cgroup/cpu.max": text})
    assert read_cgroup_limits(root) == CgroupLimits()
