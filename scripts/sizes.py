"""Report how long files and functions of the package are, and fail where one is too long.

    python scripts/sizes.py

Limits: a function 80 lines, a file 600. What is close to them is named, so that it is split before it must be.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

MAX_FUNCTION_LINES = 80
MAX_FILE_LINES = 600
ROOT = Path(__file__).resolve().parent.parent


class Sized(NamedTuple):
    """A thing and its number of lines."""

    lines: int
    name: str


def main() -> int:
    """Print the report; 1 where a limit is broken."""
    paths = sorted((ROOT / "octavo").rglob("*.py"))
    files = [Sized(path.read_text().count("\n"), str(path.relative_to(ROOT))) for path in paths]
    functions = [function for path in paths for function in functions_of(path)]
    _report("file", [file for file in files if file.lines])
    _report("function", functions)
    too_long = [each for each in files if each.lines > MAX_FILE_LINES]
    too_long += [each for each in functions if each.lines > MAX_FUNCTION_LINES]
    for each in too_long:
        print(f"too long: {each.name} has {each.lines} lines", file=sys.stderr)
    return 1 if too_long else 0


def functions_of(path: Path) -> Iterator[Sized]:
    """Every function and method of a file, decorators left out; a nested one counts for its owner too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Sized((node.end_lineno or node.lineno) - node.lineno + 1, f"{path.relative_to(ROOT)}:{node.name}")


def _report(kind: str, sizes: Sequence[Sized]) -> None:
    ordered = sorted(sizes)
    middle, tail, longest = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99, 1.0))
    print(
        f"lines per {kind}: {len(ordered)} {kind}s, {sum(each.lines for each in ordered)} lines, p50 {middle.lines}, "
        f"p99 {tail.lines}, longest {longest.lines} ({longest.name})"
    )


if __name__ == "__main__":
    sys.exit(main())
