"""A profile as others can look at it: the Chrome trace format, for chrome://tracing, Perfetto and their kin.

Format: "Trace Event Format", complete events (ph X) in microseconds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from octavo.util.spans import Span
from octavo.words.errors import ConfigError


def add_profile_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="write a Chrome trace of the timed steps (see ui.perfetto.dev)"
    )


def check_profile_argument(args: argparse.Namespace) -> None:
    """Raises ConfigError where the file could not be written, before anything runs."""
    if args.profile is not None and not args.profile.parent.is_dir():
        raise ConfigError(f"--profile {args.profile}: the folder {args.profile.parent} does not exist.")


def write_chrome_trace(path: Path, spans: Iterable[Span]) -> None:
    """Write ``spans``, a line of the picture per track."""
    path.write_text(json.dumps(chrome_trace(spans)) + "\n", encoding="utf-8")


def chrome_trace(spans: Iterable[Span]) -> dict[str, Any]:
    """``spans`` as a trace; times begin with the first."""
    ordered = sorted(spans, key=lambda span: span.start_ns)
    begin = ordered[0].start_ns if ordered else 0
    tracks = {name: number for number, name in enumerate(dict.fromkeys(span.track for span in ordered), start=1)}
    names = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": name}}
        for name, number in tracks.items()
    ]
    events = [
        {
            "name": span.name,
            "cat": span.track,
            "ph": "X",
            "pid": 1,
            "tid": tracks[span.track],
            "ts": (span.start_ns - begin) / 1e3,
            "dur": span.duration_ns / 1e3,
            "args": span.facts,
        }
        for span in ordered
    ]
    return {"traceEvents": names + events, "displayTimeUnit": "ms"}
