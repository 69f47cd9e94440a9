"""What the control group (container) of this process allows, read from the files of cgroup v1 and v2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class CgroupLimits:
    """The tightest limits over the group and its parents; None where nothing limits.

    ``memory_bytes`` is the cap, ``memory_left_bytes`` what is still unused of it (page cache that the kernel can drop
    counts as unused), ``cpus`` the CPU time per second that the quota grants.
    """

    memory_bytes: int | None = None
    memory_left_bytes: int | None = None
    cpus: float | None = None


def read_cgroup_limits(root: Path = Path("/")) -> CgroupLimits:
    """Read the limits under ``root`` (another one in tests); unreadable files limit nothing."""
    memory: list[tuple[int, int]] = []
    cpus: list[float] = []
    for hierarchy, folder in _folders(root):
        if hierarchy in ("", "memory"):
            memory += _memory(folder)
        if hierarchy in ("", "cpu"):
            cpus += _cpus(folder)
    return CgroupLimits(
        memory_bytes=min((limit for limit, _ in memory), default=None),
        memory_left_bytes=min((left for _, left in memory), default=None),
        cpus=min(cpus, default=None),
    )


def is_cpu_partition(root: Path = Path("/")) -> bool:
    """Whether the CPUs of this process's group, or of one of its parents, are closed to all other groups."""
    partitions = [_text(folder / "cpuset.cpus.partition") for hierarchy, folder in _folders(root) if not hierarchy]
    return any(text.strip() in ("root", "isolated") for text in partitions)


def _folders(root: Path) -> Iterator[tuple[str, Path]]:
    """(controller, folder) of this process's groups and all their parents; the controller is "" for cgroup v2."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            mount = _mount(root, controller)
            # Inside a container the path may be the host's: then the mount itself is our group.
            for part in (Path(path), *Path(path).parents):
                yield controller, mount / str(part).lstrip("/")


def _mount(root: Path, controller: str) -> Path:
    base = root / "sys/fs/cgroup"
    if controller:
        return base / controller
    return base / "unified" if (base / "unified").is_dir() else base


def _memory(folder: Path) -> list[tuple[int, int]]:
    """[(limit, left)] of one folder, or []."""
    for limit_name, usage_name in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit, usage = _number(folder / limit_name), _number(folder / usage_name)
        # v1 writes "no limit" as a number near 2**63.
        if limit is not None and limit < 1 << 60:
            used = max(0, (usage or 0) - _droppable(folder))
            return [(limit, max(0, limit - used))]
    return []


def _droppable(folder: Path) -> int:
    """Bytes of page cache that the kernel gives back under pressure."""
    counts = dict(line.split() for line in _text(folder / "memory.stat").splitlines() if len(line.split()) == 2)
    return int(counts.get("total_inactive_file", counts.get("inactive_file", "0")))


def _cpus(folder: Path) -> list[float]:
    quota, period = (_text(folder / "cpu.max").split() + ["", ""])[:2]
    if not quota:
        quota, period = _text(folder / "cpu.cfs_quota_us").strip(), _text(folder / "cpu.cfs_period_us").strip()
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:  # "max" and "-1" mean no quota
        return []
    return [int(quota) / int(period)]


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
