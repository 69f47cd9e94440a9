"""The shapes that a client may ask an answer to have."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from octavo.server.api_error import ApiError
from octavo.words.structured_outputs import StructuredOutputParams

T = TypeVar("T")


def as_shape(given: Any, param: str) -> StructuredOutputParams:
    """``structured_outputs`` of a request. Raises ApiError naming ``param``."""
    return as_words(given, StructuredOutputParams, param)


def as_words(given: Any, kind: type[T], param: str) -> T:
    """An object of a request as the engine says it. Raises ApiError naming ``param``."""
    if not isinstance(given, dict):
        raise ApiError(400, f"{param} must be an object.", param=param)
    try:
        return msgspec.convert(given, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ApiError(400, f"{param}: {error}", param=param) from error


def asked_shape(param: str, form: Any, structured_outputs: Any) -> StructuredOutputParams | None:
    """The shape that a request asks for, as a ``form`` under ``param`` or in our words; None for none."""
    shape = None if form is None else shape_of_format(form, param)
    if structured_outputs is None:
        return shape
    if shape is not None:
        raise ApiError(400, f"give {param} or structured_outputs, not both.", param=param)
    return as_shape(structured_outputs, "structured_outputs")


def shape_of_format(given: Any, param: str) -> StructuredOutputParams | None:
    """The shape that a ``response_format`` (or the ``text.format`` of a response) stands for; None for plain text.

    A schema may stand under ``json_schema`` (chat completions) or beside the type (responses).
    """
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputParams(json_object=True)
    if kind == "json_schema":
        holder = given.get("json_schema", given)
        schema = holder.get("schema") if isinstance(holder, dict) else None
        if schema is None:
            raise ApiError(400, f"{param}.json_schema needs a schema.", param=param)
        return as_shape({"json": schema}, param)
    if kind == "structural_tag":
        return as_shape({"structural_tag": {key: value for key, value in given.items() if key != "type"}}, param)
    raise ApiError(400, f"{param}.type must be text, json_object, json_schema or structural_tag.", param=param)
