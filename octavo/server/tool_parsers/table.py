"""The formats by name, and which of them a chat template tells of."""

from __future__ import annotations

from octavo.server.tool_parsers.tool_format import ToolFormat
from octavo.util.lazy import resolve
from octavo.words.errors import ConfigError

_HOME = "octavo.server.tool_parsers."
TOOL_FORMATS = {
    "hermes": _HOME + "tagged_json:HERMES",
    "mistral": _HOME + "mistral:MISTRAL",
    "deepseek": _HOME + "deepseek:DEEPSEEK",
    "harmony": _HOME + "harmony:HARMONY",
    "pythonic": _HOME + "pythonic:PYTHONIC",
    "llama3_json": _HOME + "bare_json:LLAMA3_JSON",
}
"""Looked through in this order: the marks of the last are the least telling."""


def tool_format(name: str) -> ToolFormat:
    """Raises ConfigError for a name that is not in the table."""
    if name not in TOOL_FORMATS:
        raise ConfigError(f"tool_call_parser {name!r} is not known; there are {', '.join(TOOL_FORMATS)}.")
    found: ToolFormat = resolve(TOOL_FORMATS[name])
    return found


def format_of_template(chat_template: str | None) -> ToolFormat | None:
    """The format that a model with this chat template writes, None where the template does not tell."""
    for name in TOOL_FORMATS if chat_template else ():
        found = tool_format(name)
        if all(mark in (chat_template or "") for mark in found.template_marks):
            return found
    return None
