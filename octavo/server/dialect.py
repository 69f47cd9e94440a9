"""How the served model writes thoughts and calls, and what that means for one request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from octavo.config.server import ServerConfig
from octavo.server.api_error import ApiError
from octavo.server.output_events import (
    PIECE,
    CallArguments,
    CallBegins,
    Chain,
    Content,
    Event,
    OutputParser,
    PlainText,
    Reasoning,
)
from octavo.server.reasoning_parsers.think import parser_of_style
from octavo.server.tool_call_counts import Interface, ToolCallCounts
from octavo.server.tool_parsers.table import format_of_template, tool_format
from octavo.server.tool_parsers.tool_format import ToolFormat
from octavo.server.tool_use import NO_TOOLS, ToolUse
from octavo.tokenizer.reasoning_style import ReasoningStyle, reasoning_style, style_of_template
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.words.sampling_params import SamplingParams
from octavo.words.structured_outputs import StructuredOutputParams

AUTO, NONE = "auto", "none"
_TAIL_TOKENS = 32
"""Tokens at the end of a prompt that are looked at for tags."""


def check_parsers(config: ServerConfig) -> None:
    """Raise ConfigError for a parser that is not known, before a model is loaded."""
    if config.tool_call_parser not in (AUTO, NONE):
        tool_format(config.tool_call_parser)
    if config.reasoning_parser not in (AUTO, NONE):
        reasoning_style(config.reasoning_parser)


@dataclass(frozen=True)
class AnswerPlan:
    """How an answer is held to what was asked, and how it is read. ``is_plain``: all of it is content."""

    dialect: Dialect
    tools: ToolUse
    prompt_tail: str
    reasoning_end_ids: tuple[int, ...] = ()
    interface: Interface = "other"
    is_stream: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether nothing need be read out of the text."""
        return isinstance(self._parser(), PlainText)

    def applied_to(self, params: SamplingParams) -> SamplingParams:
        """The parameters with the grammar of the calls that must come, or may, and with the markup kept in the text."""
        if self.tools.is_forced:
            if params.structured_outputs is not None:
                raise ApiError(
                    400,
                    "a call that tool_choice asks for has a shape of its own: leave out response_format and "
                    "structured_outputs, or set tool_choice to auto.",
                    param="tool_choice",
                )
            grammar = self._format.grammar(self.tools.callable_tools, several=self.tools.several)
            params = params.clone(structured_outputs=StructuredOutputParams(grammar=grammar))
        elif params.structured_outputs is None and (strict := self._grammar_of_strict_tools()):
            params = params.clone(structured_outputs=StructuredOutputParams(grammar=strict))
        return params.clone(skip_special_tokens=False) if self._needs_special_tokens else params

    def reader(self) -> AnswerReader:
        """For one answer of the request."""
        parser = self._parser()
        count = partial(self.dialect.tool_calls.add, self.interface, is_stream=self.is_stream)
        return AnswerReader(parser if self.tools.several else FirstCall(parser), count if self.tools.tools else None)

    def finish_reason(self, reason: str | None, num_calls: int) -> str | None:
        """OpenAI's word: an answer that ends with calls of the model's own choice ends for them."""
        return "tool_calls" if reason == "stop" and num_calls and not self.tools.is_named else reason

    def _grammar_of_strict_tools(self) -> str | None:
        tools = self.tools.strict_tools
        if not tools:
            return None
        rules = self._format.open_grammar(tools, self.dialect.special_tokens)
        if rules is None:
            raise ApiError(
                400,
                f"calls in the {self._format.name} format cannot be held to these strict tools under tool_choice auto: "
                "leave out strict, or set tool_choice to required.",
                param="tools",
            )
        return rules

    @property
    def _format(self) -> ToolFormat:
        assert self.dialect.tool_format is not None  # checked by Dialect.plan
        return self.dialect.tool_format

    @property
    def _reads_calls(self) -> bool:
        found = self.dialect.tool_format
        return found is not None and (bool(self.tools.tools) or found.reads_thoughts)

    @property
    def _needs_special_tokens(self) -> bool:
        calls = self._reads_calls and not self.tools.is_forced and self._format.needs_special_tokens
        return calls or self.dialect.thinks_in_special_tokens

    def _parser(self) -> OutputParser:
        calls = self._format.parser(forced=self.tools.is_forced) if self._reads_calls else PlainText()
        style = self.dialect.style
        thoughts = PlainText() if style is None else parser_of_style(style, self.prompt_tail)
        if isinstance(thoughts, PlainText):
            return calls
        return Chain(thoughts, calls)


class Dialect:
    """What the model's template says, unless the server was told otherwise."""

    def __init__(self, tokenizer: Tokenizer, config: ServerConfig, tool_calls: ToolCallCounts | None = None) -> None:
        self._tokenizer = tokenizer
        self.tool_calls = tool_calls or ToolCallCounts()
        template = tokenizer.chat_template
        self.tool_format = _chosen(config.tool_call_parser, tool_format, format_of_template, template)
        self.style: ReasoningStyle | None = None
        if self.tool_format is None or not self.tool_format.reads_thoughts:
            self.style = _chosen(config.reasoning_parser, reasoning_style, style_of_template, template)
        self._thinks_unasked = config.reasoning_parser != AUTO
        self._looks_for_calls = config.tool_call_parser != NONE
        self._shows_tools = "tools" in (template or "")
        self.special_tokens = {tokenizer.convert_id_to_token(each): each for each in tokenizer.special_ids}
        self.thinks_in_special_tokens = self.style is not None and self.style.end in self.special_tokens

    def check(self, tools: ToolUse) -> None:
        """Raise ApiError where the model cannot be shown tools, or nobody knows how it calls them.

        A server that was told to look for no calls need not know, as long as none must come or hold to a schema.
        """
        if not tools.tools:
            return
        if not self._shows_tools:
            raise ApiError(
                400,
                "this model's chat template has no place for tools: leave them out, or start the server with a "
                "--chat-template that has.",
                param="tools",
            )
        if self.tool_format is not None:
            return
        if self._looks_for_calls:
            raise ApiError(
                400,
                "the chat template does not tell how this model writes calls: start the server with "
                "--tool-call-parser.",
                param="tools",
            )
        if tools.is_forced or tools.strict_tools:
            raise ApiError(
                400,
                "this server runs with --tool-call-parser none, so calls cannot be held to a shape: set tool_choice to "
                "auto, and leave out strict.",
                param="tools",
            )

    def plan(
        self,
        prompt_token_ids: Sequence[int],
        tools: ToolUse = NO_TOOLS,
        *,
        interface: Interface = "other",
        is_stream: bool = False,
    ) -> AnswerPlan:
        """For a request with this prompt. A grammar waits for the end of the thoughts that the prompt began."""
        if self.style is None:
            return AnswerPlan(self, tools, "", (), interface, is_stream)
        tail = self._tokenizer.decode(list(prompt_token_ids[-_TAIL_TOKENS:]), skip_special_tokens=False)
        return AnswerPlan(self, tools, tail, self._end_of_thoughts(self.style, tail), interface, is_stream)

    def _end_of_thoughts(self, style: ReasoningStyle, tail: str) -> tuple[int, ...]:
        if style.is_closed_by(tail) or not (style.is_opened_by(tail) or self._thinks_unasked):
            return ()
        return tuple(self._tokenizer.encode(style.end, add_special_tokens=False, at_start=False))


def _chosen(name: str, by_name: Any, by_template: Any, template: str | None) -> Any:
    if name == NONE:
        return None
    return by_template(template) if name == AUTO else by_name(name)


class AnswerReader:
    """Reads one answer as it comes; neighbouring events of a kind are one. ``count`` is told whether it had calls."""

    def __init__(self, parser: OutputParser, count: Callable[..., None] | None = None) -> None:
        self._parser = parser
        self._count = count
        self._has_calls = False

    def take(self, text: str, *, is_last: bool) -> list[Event]:
        """What more text says, the last of an answer or not."""
        events: list[Event] = []
        for start in range(0, len(text), PIECE):
            events += self._parser.feed(text[start : start + PIECE])
        if is_last:
            events += self._parser.end()
        if self._count is not None:
            self._has_calls |= any(isinstance(event, CallBegins) for event in events)
            if is_last:
                self._count(has_calls=self._has_calls)
        return _joined(events)


class FirstCall:
    """Drops all calls but the first."""

    def __init__(self, inner: OutputParser) -> None:
        self._inner = inner
        self._num_calls = 0

    def feed(self, text: str) -> list[Event]:
        return self._kept(self._inner.feed(text))

    def end(self) -> list[Event]:
        return self._kept(self._inner.end())

    def _kept(self, events: list[Event]) -> list[Event]:
        kept: list[Event] = []
        for event in events:
            self._num_calls += isinstance(event, CallBegins)
            if self._num_calls <= 1 or not isinstance(event, CallBegins | CallArguments):
                kept.append(event)
        return kept


def _joined(events: list[Event]) -> list[Event]:
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, Reasoning | Content | CallArguments) and type(last) is type(event):
            joined[-1] = type(event)(last.text + event.text)
        else:
            joined.append(event)
    return joined
