"""The page at /docs, as a browser without the internet and without scripts has it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from octavo.server.docs_page import docs_page
from tests.server.test_gate import ask, make_context


class Links(HTMLParser):
    """Every address that a page names, and every place that can be gone to in it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.addresses: set[str] = set()
        self.places: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src", "action"):
                self.addresses.add(value or "")
            if name == "id":
                self.places.add(f"#{value}")


def test_the_page_says_all_that_the_description_does_and_asks_for_nothing_else() -> None:
    context = make_context(dev_mode=True)
    answer = ask(context, "GET", "/docs", keys=[])
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert "<script" not in answer.text and "://" not in answer.text
    description = ask(context, "GET", "/openapi.json", keys=[]).json()
    named = set(re.findall(r"<code>((?:GET|POST|DELETE) [^<]+)</code>", answer.text))
    operations = [f"{method.upper()} {path}" for path, found in description["paths"].items() for method in found]
    assert named == set(operations) and len(operations) > 30
    links = Links(answer.text)
    assert links.addresses == links.places | {"openapi.json"}
    assert links.places == {f"#{name}" for name in description["components"]["schemas"]}


def test_fields_are_told_with_type_and_default_and_no_text_is_markup() -> None:
    fields = {
        "a": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": "<b>"},
        "b": {"type": "array", "items": {"$ref": "#/components/schemas/Thing"}},
        "c": {"enum": ["x", "y"]},
    }
    thing = {"description": "A <thing>.", "properties": fields, "required": ["b"]}
    page = docs_page({"info": {"title": "T", "version": "1"}, "paths": {}, "components": {"schemas": {"Thing": thing}}})
    assert "<td>string or null<td><code>&#x27;&lt;b&gt;&#x27;</code>" in page
    assert '<td>list of <a href="#Thing">Thing</a><td>required' in page
    assert "<td><code>&#x27;x&#x27;</code> or <code>&#x27;y&#x27;</code><td>" in page
    assert "A &lt;thing&gt;." in page
