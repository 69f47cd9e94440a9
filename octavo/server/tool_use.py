"""What a request says of tools, whichever interface it came by: checked, and refused clearly."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from octavo.frontend.sampling_resolver import GRAMMAR_CHECK
from octavo.server.api_error import ApiError
from octavo.server.tool_parsers.tool_format import Tool, parameters
from octavo.util.lazy import resolve
from octavo.words.errors import RequestError
from octavo.words.structured_outputs import StructuredOutputParams

MAX_TOOLS = 512
MAX_NAME_CHARACTERS = 128
CHOICES = ("none", "auto", "required")
_ONLY_UNSUPPORTED = (
    "Unimplemented",
    "Unknown format",
    "look-around",
    "backreferences",
    "oneOf may overlap",
    "not disjoint",
    "it demands",
    "inside each other",
    "too many remainders",
    "not present in a registry",
)
"""Words for a schema that is well-formed, but more than a grammar can hold an answer to."""

_ANY_ARGUMENTS = {"type": "object"}


@dataclass(frozen=True)
class ToolUse:
    """``tools`` are the functions that the model is shown; ``callable_tools`` those that it must call one of if
    ``is_forced``. ``is_named``: the request names the one. ``several``: an answer may hold more than one call.
    """

    tools: tuple[Tool, ...] = ()
    callable_tools: tuple[Tool, ...] = ()
    is_forced: bool = False
    is_named: bool = False
    several: bool = True

    @property
    def strict_tools(self) -> list[Tool] | None:
        """The tools with the schemas that a call of the model's own choice must hold to; None if none is ``strict``."""
        if not any(tool.get("strict") for tool in self.tools):
            return None
        return [tool if tool.get("strict") else {**tool, "parameters": _ANY_ARGUMENTS} for tool in self.tools]

    @property
    def for_template(self) -> list[dict[str, Any]] | None:
        """The tools as chat templates expect them; None for none."""
        return [{"type": "function", "function": dict(tool)} for tool in self.tools] or None


NO_TOOLS = ToolUse()


def tool_use(functions: Sequence[Tool], choice: str, *, name: str | None, several: bool) -> ToolUse:
    """Put together what a request says: ``choice`` is one of CHOICES, ``name`` a tool that must be called.

    Raises ApiError for a tool that is not there and for a schema that cannot be used: under ``auto`` one that is
    broken, in a call that is forced or of a ``strict`` tool also one that says more than a grammar can.
    """
    is_forced = name is not None or choice == "required"
    if is_forced and not functions:
        raise ApiError(400, "tool_choice asks for a call, but there are no tools.", param="tool_choice")
    called = [tool for tool in functions if name is None or tool["name"] == name]
    if not called and is_forced:
        raise ApiError(400, f"tool_choice names {name!r:.80}, which is none of the tools.", param="tool_choice")
    if choice == "none" and name is None:
        return NO_TOOLS
    for tool in functions:
        _check_parameters(tool, is_strict=bool(tool.get("strict")) or (is_forced and tool in called))
    return ToolUse(tuple(functions), tuple(called), is_forced, name is not None, several and name is None)


def openai_tools(tools: Sequence[Any] | None, function_of: Callable[[Mapping[str, Any]], Any]) -> list[Tool]:
    """The functions among an OpenAI request's ``tools``; ``function_of`` finds that of one. Raises ApiError."""
    return [_function(tool, f"tools[{index}]", function_of) for index, tool in enumerate(checked_list(tools))]


def checked_list(tools: Sequence[Any] | None) -> Sequence[Any]:
    """``tools``, of which there may not be too many."""
    if len(tools or ()) > MAX_TOOLS:
        raise ApiError(400, f"there may be at most {MAX_TOOLS} tools.", param="tools")
    return tools or ()


def checked_function(given: Any, where: str) -> Tool:
    """A function with a name that can be used, and an object as the schema of its arguments."""
    name = given.get("name") if isinstance(given, Mapping) else None
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME_CHARACTERS:
        raise ApiError(
            400, f"{where} needs a function with a name of 1 to {MAX_NAME_CHARACTERS} characters.", param="tools"
        )
    if not isinstance(given.get("parameters"), dict | None):
        raise ApiError(400, f"{where} ({name}): parameters must be an object, a JSON schema.", param="tools")
    return dict(given)


def openai_tool_use(
    functions: Sequence[Tool], choice: Any, parallel: bool | None, name_of: Callable[[Mapping[str, Any]], Any]
) -> ToolUse:
    """From the words of OpenAI's interfaces; ``name_of`` finds the name in a ``tool_choice`` that is an object."""
    several = parallel is not False
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        name = name_of(choice)
        if not isinstance(name, str):
            raise ApiError(400, "tool_choice must name its function.", param="tool_choice")
        return tool_use(functions, "required", name=name, several=several)
    if choice not in (None, *CHOICES):
        raise ApiError(
            400, f"tool_choice can be {', '.join(CHOICES)} or an object that names a function.", param="tool_choice"
        )
    return tool_use(functions, choice or "auto", name=None, several=several)


def _function(tool: Any, where: str, function_of: Callable[[Mapping[str, Any]], Any]) -> Tool:
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    if kind != "function":
        raise ApiError(400, f"{where}: a tool of type {kind!r:.60} is not possible; use function.", param="tools")
    return checked_function(function_of(tool), where)


def _check_parameters(tool: Tool, *, is_strict: bool) -> None:
    try:
        reason = _what_is_wrong(json.dumps(parameters(tool)))
    except (ValueError, RecursionError) as error:
        reason = str(error)
    if reason and (is_strict or not any(word in reason for word in _ONLY_UNSUPPORTED)):
        raise ApiError(400, f"the tool {tool['name']!r} has parameters that cannot be used: {reason}", param="tools")


@lru_cache(maxsize=512)
def _what_is_wrong(schema: str) -> str:
    """Why no grammar can be made of a schema; nothing if one can. Agents send the same tools each time."""
    try:
        resolve(GRAMMAR_CHECK)(StructuredOutputParams(json=schema))
    except RequestError as error:
        return str(error).partition("cannot be used: ")[2] or str(error)
    return ""
