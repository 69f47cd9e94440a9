"""The documentation holds together: every page can be found from the README, and no link leads nowhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SCREEN = (
    "structured-output",
    "tools",
    "speculative-decoding",
    "lora",
    "pooling",
    "beam-search",
    "logits-processors",
    "prompt-embeds",
)
"""Pages of features that are read at one glance: what is more belongs on the pages that they link to."""
SCREEN_LINES, SCREEN_COLUMNS = 60, 140
LINK = re.compile(r"\]\(([^)\s]+)\)")


def links(page: Path) -> list[tuple[Path, str]]:
    """The files of this repository that a page links to, each with the heading that is meant, if one is."""
    found = []
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            found.append(((page.parent / path).resolve() if path else page, anchor))
    return found


def anchors(page: Path) -> set[str]:
    """The names of a page's headings in links, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to #{anchor} of {target.name}"


@pytest.mark.parametrize("name", SCREEN)
def test_the_page_of_a_feature_fits_on_a_screen(name: str) -> None:
    lines = (ROOT / "docs" / f"{name}.md").read_text().splitlines()
    assert len(lines) <= SCREEN_LINES
    assert [line for line in lines if len(line) > SCREEN_COLUMNS] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            todo += [target for target, _ in links(page)]
    assert set(PAGES) <= reached
