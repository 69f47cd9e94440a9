"""Write docs/options.md from the fields of the config: python scripts/options_table.py."""

from __future__ import annotations

from pathlib import Path

from octavo.config.flat import options_page

if __name__ == "__main__":
    Path(__file__).resolve().parent.parent.joinpath("docs", "options.md").write_text(options_page())
