"""Formats whose markup is special tokens: they differ in how calls are read, and in the rules of a call in a text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from octavo.server.output_events import OutputParser
from octavo.server.tool_parsers.bare_json import BareJsonParser
from octavo.server.tool_parsers.tool_format import Tool, bare_calls


@dataclass(frozen=True)
class SpecialTokenFormat:
    """``ToolFormat`` of ``own_parser``, and of ``open_rules`` (see ``open_grammar``).

    Rules cannot spell special tokens, so a call that must come is a JSON object alone.
    """

    name: str
    template_marks: Sequence[str]
    own_parser: Callable[[], OutputParser]
    open_rules: Callable[[Sequence[Tool], Mapping[str, int]], str | None]
    reads_thoughts: bool = False
    needs_special_tokens: ClassVar[bool] = True

    def parser(self, *, forced: bool = False) -> OutputParser:
        return BareJsonParser() if forced else self.own_parser()

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> str:
        return bare_calls(tools, several=several)

    def open_grammar(self, tools: Sequence[Tool], special: Mapping[str, int]) -> str | None:
        return self.open_rules(tools, special)
