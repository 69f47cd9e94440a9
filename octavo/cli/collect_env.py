"""``octavo collect-env``: what a report of a problem should say about the machine."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from octavo import __version__
from octavo.config.env import read_environment
from octavo.device.platform.detect import detect_caps
from octavo.util.byte_size import format_byte_size

PACKAGES = (
    "torch",
    "numpy",
    "safetensors",
    "tokenizers",
    "msgspec",
    "pyzmq",
    "fastapi",
    "uvicorn",
    "uvloop",
    "llguidance",
    "transformers",
)
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    found = collect()
    print(json.dumps(found, indent=2) if args.json else as_text(found))
    return 0


def collect() -> dict[str, dict[str, Any]]:
    """Facts by topic; loads neither torch nor a model, and nothing of it is secret."""
    caps, environment = detect_caps("cpu"), read_environment()
    return {
        "octavo": {
            "version": __version__,
            "native kernels": caps.has_native,
            "cache folder": str(environment.cache_root),
            "offline": environment.offline,
            "logging level": environment.logging_level,
        },
        "system": {
            "python": sys.version.split()[0],
            "platform": platform.platform(),
            "C library": " ".join(platform.libc_ver()),
            "executable": sys.executable,
        },
        "cpu": {
            "name": caps.name,
            "threads we may use": caps.num_threads,
            "instruction sets": ", ".join(caps.isa),
            "fast types": ", ".join(caps.fast_dtypes),
            "governor": _first_line(GOVERNOR),
        },
        "memory": {
            "total": format_byte_size(caps.total_bytes),
            "available to us": format_byte_size(caps.available_bytes),
            "transparent huge pages": _first_line(HUGE_PAGES),
        },
        "packages": {name: _version(name) for name in PACKAGES},
    }


def as_text(found: dict[str, dict[str, Any]]) -> str:
    lines = []
    for topic, facts in found.items():
        lines.append(topic)
        lines += [f"  {name:<27}{value if value not in (None, '', {}) else '-'}" for name, value in facts.items()]
    return "\n".join(lines)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _first_line(path: Path) -> str | None:
    try:
        return path.read_text().strip().splitlines()[0]
    except (OSError, IndexError):
        return None
