"""Flags for the fields of SamplingParams, derived from its annotations."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import msgspec

from octavo.words.beam_search import BeamSearch
from octavo.words.errors import ConfigError, RequestError
from octavo.words.repetition_detection import RepetitionDetectionParams
from octavo.words.sampling_params import SamplingParams
from octavo.words.structured_outputs import StructuredOutputParams

REPETITION_EXAMPLE = '{"max_pattern_size": 8, "min_count": 4}'
BEAM_EXAMPLE = '{"width": 4}'
NOT_FLAGS = {"output_kind", "detokenize"}
"""Fields the commands set themselves."""


def parse_bias(text: str) -> dict[int, float]:
    """``{"66": -100}`` as a flag's value."""
    try:
        return {int(token_id): float(bias) for token_id, bias in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise argparse.ArgumentTypeError(f'expected JSON such as {{"66": -100}}, got {text!r}') from error


def fields_of(kind: type, example: str) -> Callable[[str], Any]:
    """A parser of JSON with the fields of ``kind``, such as ``example``."""

    def parse(text: str) -> Any:
        try:
            return kind(**json.loads(text))
        except RequestError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        except (ValueError, TypeError) as error:
            raise argparse.ArgumentTypeError(f"expected JSON such as {example}, got {text!r}") from error

    return parse


HELP = {
    "n": "answers per prompt",
    "presence_penalty": "taken from the logits of tokens that were generated (-2 to 2)",
    "frequency_penalty": "the same, once for each time they were (-2 to 2)",
    "repetition_penalty": "divides the logits of tokens seen so far; above 1 avoids them",
    "temperature": "0 = always the likeliest token; up to 2",
    "top_p": "sample from the likeliest tokens that make up this probability",
    "top_k": "sample from this many of the likeliest tokens; 0 = all",
    "min_p": "drop tokens below this share of the likeliest one's probability",
    "seed": "makes the sampling repeatable",
    "stop": "text that ends an answer",
    "stop_token_ids": "token id that ends an answer",
    "ignore_eos": "go on when the model would end",
    "max_tokens": "most tokens of an answer",
    "min_tokens": "tokens before an answer may end",
    "logprobs": "report the log probabilities of this many of the likeliest tokens (in --json)",
    "prompt_logprobs": "the same for the tokens of the prompt",
    "logit_bias": 'added to logits, such as {"66": -100}',
    "allowed_token_ids": "token id that may be sampled; no other then",
    "bad_words": "text that is never generated",
    "structured_outputs": 'shape of the answer, such as {"regex": "[0-9]+"} or {"json": {"type": "object"}}',
    "truncate_prompt_tokens": "keep so many of the last tokens of a longer prompt; -1: what fits before max_tokens",
    "thinking_token_budget": "most tokens of thought before the answer; needs a model whose template has thoughts",
    "repetition_detection": f"when to end an answer that repeats itself, such as {REPETITION_EXAMPLE}",
    "extra_args": "for the engine's own logits processors, as a JSON object",
    "beam_search": f"search instead of sampling, such as {BEAM_EXAMPLE}",
    "skip_special_tokens": "leave special tokens out of the text",
    "spaces_between_special_tokens": "put spaces between special tokens in the text",
    "include_stop_str_in_output": "keep the stop text in the answer",
}

LIST_FIELDS: dict[str, type] = {"stop": str, "stop_token_ids": int, "allowed_token_ids": int, "bad_words": str}
JSON_FIELDS: dict[str, Callable[[str], Any]] = {
    "logit_bias": parse_bias,
    "structured_outputs": fields_of(StructuredOutputParams, '{"regex": "[0-9]+"}'),
    "repetition_detection": fields_of(RepetitionDetectionParams, REPETITION_EXAMPLE),
    "extra_args": fields_of(dict, '{"strength": 1}'),
    "beam_search": fields_of(BeamSearch, BEAM_EXAMPLE),
}
SCALAR_TYPES: dict[str, type] = {"int": int, "float": float, "int | None": int}


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a flag per field; one that is not given leaves the model's default alone."""
    group = parser.add_argument_group(
        "sampling",
        "What is not given is the model's own default. Flags with VALUE are repeatable: --stop A --stop B.",
    )
    for field in msgspec.structs.fields(SamplingParams):
        if field.name in NOT_FLAGS:
            continue
        flag = "--" + field.name.replace("_", "-")
        annotation = SamplingParams.__annotations__[field.name]
        keywords: dict[str, Any] = {"dest": f"sampling_{field.name}", "default": None, "help": HELP[field.name]}
        if field.name in LIST_FIELDS:
            keywords |= {"action": "append", "type": LIST_FIELDS[field.name], "metavar": "VALUE"}
        elif field.name in JSON_FIELDS:
            keywords |= {"type": JSON_FIELDS[field.name], "metavar": "JSON"}
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
        raise ConfigError(f"--{(error.param or '').replace('_', '-')}: {error}") from None


def check_sampling_flags(args: argparse.Namespace) -> None:
    """Raise ConfigError for flags that no model makes right, before one is loaded."""
    sampling_params_from(args, SamplingParams(max_tokens=None))
