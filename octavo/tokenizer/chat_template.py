"""Rendering of chat templates: Hugging Face's Jinja dialect, in a sandbox with a budget.

A template comes out of a model file and its input from strangers, so neither may read attributes of Python objects,
run for long or fill the memory. What a template writes is byte for byte what Transformers makes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jinja2

from octavo.tokenizer.template_sandbox import environment, rendering
from octavo.words.errors import RequestError

MAX_TEMPLATE_CHARACTERS = 256 * 1024
MAX_SECONDS = 2.0

RESERVED_OPTIONS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "self",
        "tokenize",
        "tokenizer",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Names that callers set by arguments of their own; a request's template options may not hold them."""


class ChatTemplate:
    """One template. It is compiled at its first use; ``text`` is its source."""

    def __init__(self, text: str, *, max_seconds: float = MAX_SECONDS) -> None:
        self.text = text
        self._max_seconds = max_seconds

    def render(self, names: Mapping[str, Any]) -> str:
        """Return what the template writes, given ``names``.

        Raises RequestError with the template's own words where it raises, and where it does not compile, does
        something forbidden or does not end in time. ``names`` must be plain data (check_plain).
        """
        if isinstance(self._compiled, RequestError):
            raise RequestError(str(self._compiled), param="messages")
        try:
            with rendering(self._max_seconds):
                return self._compiled.render(names)
        except Exception as error:  # a template may raise anything that Python can
            raise _as_request_error(error) from error

    @cached_property
    def _compiled(self) -> jinja2.Template | RequestError:
        """The compiled template, or why there is none: a hostile one is not compiled again for every request."""
        if len(self.text) > MAX_TEMPLATE_CHARACTERS:
            return RequestError(f"chat template: longer than {MAX_TEMPLATE_CHARACTERS} characters.")
        try:
            return environment().from_string(self.text)
        except Exception as error:  # Python's compiler has its own limits
            return _as_request_error(error)


def _as_request_error(error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    reasons = {RecursionError: "nested too deeply.", MemoryError: "needs too much memory."}
    reason = reasons.get(type(error)) or str(error) or type(error).__name__
    return RequestError(f"chat template: {reason}", param="messages")


def check_template_options(options: Mapping[str, Any], special_tokens: Mapping[str, str]) -> dict[str, Any]:
    """Return extra names for a template, checked; RequestError for a name that is ours or a value that is no data."""
    for name in options:
        if name in RESERVED_OPTIONS or name in special_tokens:
            raise RequestError(f"chat template option {name!r} is reserved.", param="chat_template_kwargs")
    return {str(name): check_plain(value, f"chat_template_kwargs.{name}") for name, value in options.items()}


def check_plain(value: Any, where: str, depth: int = 0) -> Any:
    """Return a copy of ``value`` made of plain JSON types only; RequestError naming ``where`` for anything else."""
    if depth > 64:
        raise RequestError(f"{where} is nested too deeply (more than 64 levels).", param=where)
    if type(value) is str:
        return _unicode(value, where)
    if value is None or type(value) in (int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {_plain_key(key, where): check_plain(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [check_plain(item, where, depth + 1) for item in value]
    raise RequestError(f"{where} holds a {type(value).__name__}; only JSON values are possible.", param=where)


def _plain_key(key: object, where: str) -> str:
    if type(key) is not str:
        raise RequestError(f"{where} has a key that is no string: {key!r}.", param=where)
    return _unicode(key, where)


def _unicode(text: str, where: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(f"{where} holds half of a surrogate pair: it is not valid Unicode.", param=where) from error
    return text
