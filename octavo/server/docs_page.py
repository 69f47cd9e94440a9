"""The page at /docs: what /openapi.json says, as plain HTML. It needs no script, and nothing from anywhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from octavo.server.responses import PAGE_HEADERS

HEADERS = {
    **PAGE_HEADERS,
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'",
}
STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
summary { cursor: pointer; padding: .2rem 0 }
table { border-collapse: collapse; margin: .5rem 0 1rem }
td, th { border: 1px solid #8886; padding: .15rem .5rem; text-align: left; vertical-align: top }
"""
METHODS = ("get", "post", "put", "delete")

Schema = Mapping[str, Any]


def docs_page(description: Mapping[str, Any]) -> str:
    """HTML of an OpenAPI description: its operations by tag, then the objects that they take and give."""
    info = description["info"]
    title = escape(f"{info['title']} {info['version']}")
    return "".join(
        (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>',
            f'<h1>{title}</h1><p>For programs: <a href="openapi.json">openapi.json</a></p>',
            *_operations(description["paths"]),
            "<h2>Objects</h2>",
            *(_object(name, schema) for name, schema in sorted(description["components"]["schemas"].items())),
            "</html>",
        )
    )


def _operations(paths: Mapping[str, Any]) -> Iterator[str]:
    tag_before = None
    for path, operations in paths.items():
        for method in filter(operations.__contains__, METHODS):
            operation = operations[method]
            [tag] = operation["tags"]
            if tag != tag_before:
                yield f"<h2>{escape(tag)}</h2>"
            tag_before = tag
            yield _operation(f"{method.upper()} {path}", operation)


def _operation(name: str, operation: Mapping[str, Any]) -> str:
    body = _content(operation.get("requestBody", {}))
    answers = [
        f"<tr><td>{status}<td>{escape(answer['description'])}<td>{_content(answer)}"
        for status, answer in operation["responses"].items()
    ]
    return (
        f"<details><summary><code>{escape(name)}</code> {escape(operation.get('description', ''))}</summary>"
        + (f"<p>Body: {body}</p>" if body else "")
        + f"<table><tr><th>Status<th>Meaning<th>Body{''.join(answers)}</table></details>"
    )


def _content(holder: Mapping[str, Any]) -> str:
    """The bodies that a request or an answer may have."""
    kinds = holder.get("content", {})
    return ", or ".join(_type(kind["schema"]) if kind.get("schema") else escape(name) for name, kind in kinds.items())


def _object(name: str, schema: Schema) -> str:
    required = schema.get("required", ())
    rows = [
        f"<tr><td><code>{escape(field)}</code><td>{_type(kind)}<td>{_default(kind, is_required=field in required)}"
        for field, kind in schema.get("properties", {}).items()
    ]
    fields = f"<table><tr><th>Field<th>Type<th>Default{''.join(rows)}</table>" if rows else ""
    return f'<h3 id="{escape(name)}">{escape(name)}</h3><p>{escape(schema.get("description", ""))}</p>{fields}'


def _default(schema: Schema, *, is_required: bool) -> str:
    if is_required:
        return "required"
    return f"<code>{escape(repr(schema['default']))}</code>" if "default" in schema else ""


def _type(schema: Schema) -> str:
    """A type in words; objects that are told of elsewhere are links."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"<code>{escape(repr(value))}</code>" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items') or {})}"
    if values := schema.get("additionalProperties"):
        return f"object of {_type(values)}"
    return escape(str(schema.get("type", "any value")))
