"""Flags for the fields of SamplingParams, derived from its annotations."""

from __future__ import annotations

import argparse
import json
from typing import Any

import msgspec

from octavo.words.errors import RequestError
from octavo.words.sampling_params import SamplingParams

NOT_FLAGS = {"output_kind", "detokenize"}
"""Fields the commands set themselves."""


def parse_bias(text: str) -> dict[int, float]:
    """``{"66": -100}`` as a flag's value."""
    try:
        return {int(token_id): float(bias) for token_id, bias in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise argparse.ArgumentTypeError(f'expected JSON such as {{"66": -100}}, got {text!r}') from error


LIST_FIELDS: dict[str, type] = {"stop": str, "stop_token_ids": int, "allowed_token_ids": int, "bad_words": str}
SCALAR_TYPES: dict[str, type] = {"int": int, "float": float, "int | None": int}


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a flag per field; one that is not given leaves the model's default alone."""
    group = parser.add_argument_group("sampling", "a repeatable flag takes one value at a time: --stop A --stop B")
    for field in msgspec.structs.fields(SamplingParams):
        if field.name in NOT_FLAGS:
            continue
        flag = "--" + field.name.replace("_", "-")
        annotation = SamplingParams.__annotations__[field.name]
        keywords: dict[str, Any] = {"dest": f"sampling_{field.name}", "default": None}
        if field.name in LIST_FIELDS:
            keywords |= {"action": "append", "type": LIST_FIELDS[field.name], "metavar": "VALUE"}
        elif field.name == "logit_bias":
            keywords |= {"type": parse_bias, "metavar": "JSON"}
        elif annotation == "bool":
            keywords |= {"action": argparse.BooleanOptionalAction}
        else:
            keywords |= {"type": SCALAR_TYPES[annotation], "metavar": "N"}
        group.add_argument(flag, **keywords)


def sampling_params_from(args: argparse.Namespace, defaults: SamplingParams) -> SamplingParams:
    """The model's default parameters with what was given on the command line."""
    given = {
        name.removeprefix("sampling_"): value
        for name, value in vars(args).items()
        if name.startswith("sampling_") and value is not None
    }
    try:
        return defaults.clone(**given)
    except RequestError as error:
        raise RequestError(f"--{(error.param or '').replace('_', '-')}: {error}", param=error.param) from None
