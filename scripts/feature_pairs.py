"""Write docs/features.md from the table of the test of pairs: python scripts/feature_pairs.py."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from tests.e2e.pairs import page

    ROOT.joinpath("docs", "features.md").write_text(page())
