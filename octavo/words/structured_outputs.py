"""What shape an answer must have."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.words.errors import RequestError

MAX_REGEX_CHARACTERS = 16_384
"""Compiling takes time and memory with the square of the length: so long a one takes a quarter of a second, one of
600,000 characters tens of gigabytes."""

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


class StructuredOutputParams(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One constraint on the text of an answer; exactly one of the first six is given.

    ``json``: a JSON schema, as an object or its text. ``regex``: the whole text matches. ``choice``: the text is one of
    these. ``grammar``: Lark (or GBNF) rules with a rule ``start`` (``root``). ``json_object``: any JSON object.
    ``structural_tag``: tags in free text with a schema inside each, as an object or its text.

    Between the parts of JSON stands what ``whitespace_pattern`` (a regex) says, a few spaces and line breaks unless
    given; nothing under ``disable_any_whitespace``. ``disable_additional_properties`` closes every object whose schema
    does not say otherwise. Of the last ``closing_tokens`` before ``max_tokens`` each brings JSON to its end as soon as
    the schema lets it: an answer that would be cut off is whole instead. None: as many as the end takes; 0: it is cut
    off. Raises RequestError naming the field.
    """

    json: dict[str, Any] | bool | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: dict[str, Any] | str | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    closing_tokens: int | None = None

    def __post_init__(self) -> None:
        given = self._given()
        if len(given) != 1:
            raise RequestError(
                f"structured_outputs takes exactly one of {', '.join(KINDS)}; got {' and '.join(given) or 'none'}.",
                param="structured_outputs",
            )
        for name in ("regex", "grammar", "whitespace_pattern"):
            _require_text(name, getattr(self, name))
        for name in ("regex", "whitespace_pattern"):
            _require_short(name, getattr(self, name) or "")
        if self.choice is not None:
            self._check_choice(self.choice)
        if self.closing_tokens and (self.closing_tokens < 0 or not self.is_json):
            raise RequestError(
                "structured_outputs.closing_tokens must be 0 or more, and goes with json or json_object.",
                param="closing_tokens",
            )

    @property
    def kind(self) -> str:
        """The name of the constraint that was given."""
        return self._given()[0]

    @property
    def is_json(self) -> bool:
        """Whether the whole text is JSON."""
        return self.kind in ("json", "json_object")

    def _given(self) -> list[str]:
        """The constraints that were given. False is none, but as a JSON schema, which nothing meets."""
        return [name for name in KINDS if getattr(self, name) not in ((None,) if name == "json" else (None, False))]

    def _check_choice(self, choice: object) -> None:
        if not isinstance(choice, list) or not choice:
            raise RequestError("structured_outputs.choice must be a list of at least one text.", param="choice")
        for text in choice:
            _require_text("choice", text)


def _require_short(name: str, regex: str) -> None:
    if len(regex) > MAX_REGEX_CHARACTERS:
        raise RequestError(
            f"structured_outputs.{name} may have at most {MAX_REGEX_CHARACTERS:,} characters, got {len(regex):,}; "
            "write repetitions as {m,n}, or give a grammar.",
            param=name,
        )


def _require_text(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise RequestError(f"structured_outputs.{name} must be non-empty text.", param=name)
