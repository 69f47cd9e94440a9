"""JSON schemas for tests: real ones where the data lie beside the project, else generated; and what jsonschema says."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

DATA = Path(__file__).parents[2] / "shared" / "data"
REAL_SCHEMAS, SUITE = DATA / "schemas.jsonl", DATA / "json_schema_suite_2020_12.json"
NUM_GENERATED = 40


class Example(NamedTuple):
    """A schema, and instances with whether it allows them."""

    name: str
    schema: Any
    instances: list[tuple[Any, bool]]


def is_valid(schema: Any, instance: Any, *, with_formats: bool = False) -> bool:
    kind = validator_for(schema, default=Draft202012Validator)
    return bool(kind(schema, format_checker=kind.FORMAT_CHECKER if with_formats else None).is_valid(instance))


def real_schemas(path: Path = REAL_SCHEMAS) -> list[Example]:
    """One of the data's schemas a line, with their own instances."""
    lines = (json.loads(line) for line in path.read_text().splitlines())
    return [Example(line["name"], line["schema"], _instances(line["tests"])) for line in lines]


def suite(path: Path = SUITE) -> list[Example]:
    """The groups of JSON-Schema-Test-Suite; a name begins with the keyword."""
    return [
        Example(f"{keyword}/{group['description']}", group["schema"], _instances(group["tests"]))
        for keyword, groups in json.loads(path.read_text()).items()
        for group in groups
    ]


def _instances(tests: list[dict[str, Any]]) -> list[tuple[Any, bool]]:
    return [(test["data"], test["valid"]) for test in tests]


def generated_schemas(count: int = NUM_GENERATED) -> list[Example]:
    """Objects of the common keywords; instances that fit, and spoilt ones, of which jsonschema says whether they do."""
    return [_example(number) for number in range(count)]


def schemas_of_huge_bounds() -> dict[str, Any]:
    """Bounds that nobody reaches, alone and inside each other twelve times, by what they say (SO08)."""
    most = 10**6
    deep: Any = {"type": "string", "maxLength": most}
    lists, short = deep, {"type": "string", "maxLength": 2000}
    required = short
    for _ in range(12):
        deep = {"type": "object", "properties": {"a": deep, "b": {"type": "array", "maxItems": most}}}
        lists = {"type": "array", "items": lists, "maxItems": most}
        required = {
            "type": "object",
            "properties": {"a": required, "b": short},
            "required": ["a", "b"],
            "additionalProperties": False,
        }
    return {
        "a long text": {"type": "string", "maxLength": most},
        "a long list": {"type": "array", "maxItems": most},
        "12 objects": deep,
        "12 lists": lists,
        "12 objects, all required": required,
        "a text that must be long": {"type": "string", "minLength": most},
        "a list that must be long": {"type": "array", "items": {"type": "integer"}, "minItems": most},
    }


def _example(number: int) -> Example:
    draw = random.Random(number)
    schema = _object(draw, depth=2)
    fitting = [_instance(draw, schema) for _ in range(4)]
    spoilt = [each for instance in fitting for each in _spoilt(draw, instance)]
    instances = [(instance, is_valid(schema, instance, with_formats=True)) for instance in fitting + spoilt]
    return Example(f"generated-{number}", schema, instances)


def _object(draw: random.Random, depth: int) -> dict[str, Any]:
    names = draw.sample(("name", "size", "kind", "tags", "when", "parts", "äöü", "is open"), draw.randint(1, 4))
    return {
        "type": "object",
        "properties": {name: _schema(draw, depth - 1) for name in names},
        "required": [name for name in names if draw.random() < 0.7],
        "additionalProperties": False,
    }


def _schema(draw: random.Random, depth: int) -> dict[str, Any]:
    low = draw.randint(-20, 20)
    leaves: list[dict[str, Any]] = [
        {"type": "string", "minLength": draw.randint(0, 2), "maxLength": draw.randint(3, 20)},
        {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
        {"type": "string", "format": "date"},
        {"enum": ["small", "large", 3, None]},
        {"const": "fixed"},
        {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 300)},
        {"type": "number", "minimum": low, "maximum": low + 9},
        {"type": ["boolean", "null"]},
        {"anyOf": [{"type": "boolean"}, {"type": "integer", "minimum": 0, "maximum": 9}]},
    ]
    if depth > 0 and draw.random() < 0.4:
        items = {"minItems": draw.randint(0, 2), "maxItems": draw.randint(2, 4)}
        return draw.choice([{"type": "array", "items": _schema(draw, depth - 1), **items}, _object(draw, depth)])
    return draw.choice(leaves)


def _instance(draw: random.Random, schema: dict[str, Any]) -> Any:
    if "enum" in schema:
        return draw.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    if "anyOf" in schema:
        return _instance(draw, draw.choice(schema["anyOf"]))
    return _OF_TYPE[schema["type"] if isinstance(schema["type"], str) else draw.choice(schema["type"])](draw, schema)


def _text(draw: random.Random, schema: dict[str, Any]) -> str:
    if "pattern" in schema:
        return "".join(draw.choices("ABCXYZ", k=2)) + f"-{draw.randint(0, 999):03}"
    if "format" in schema:
        return f"20{draw.randint(10, 30)}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}"
    return "".join(draw.choices('ab ä"\\z9\n', k=draw.randint(schema["minLength"], schema["maxLength"])))


_OF_TYPE: dict[str, Any] = {
    "string": _text,
    "integer": lambda draw, schema: draw.randint(schema["minimum"], schema["maximum"]),
    "number": lambda draw, schema: round(draw.uniform(schema["minimum"], schema["maximum"]), 2),
    "boolean": lambda draw, schema: draw.random() < 0.5,
    "null": lambda draw, schema: None,
    "array": lambda draw, schema: [
        _instance(draw, schema["items"]) for _ in range(draw.randint(schema["minItems"], schema["maxItems"]))
    ],
    "object": lambda draw, schema: {
        name: _instance(draw, inner)
        for name, inner in schema["properties"].items()
        if name in schema["required"] or draw.random() < 0.5
    },
}


def _spoilt(draw: random.Random, instance: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One property less, one more, and one of another kind."""
    yield {**instance, "unheard of": 1}
    if instance:
        name = draw.choice(list(instance))
        yield {key: value for key, value in instance.items() if key != name}
        yield {**instance, name: draw.choice(["x" * 50, 10**6, [], {"a": 1}, True, -0.5])}
