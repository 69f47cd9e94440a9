"""Prompts for a load: made up of a given length, or from a file."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from octavo.bench.serving.load import Prompt
from octavo.words.errors import ConfigError

SHAREGPT_SHORTEST, SHAREGPT_LONGEST_PROMPT, SHAREGPT_LONGEST = 4, 1024, 2048
"""Tokens: prompts and answers outside these bounds are left out, as is usual with this set."""

TRIED_IDS, ENOUGH_WORDS = 8000, 100


class TextCoder(Protocol):
    """The part of a tokenizer that is needed here."""

    @property
    def num_text_tokens(self) -> int: ...

    @property
    def special_ids(self) -> frozenset[int]: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str: ...


@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """What was asked. Lengths are tokens; ``range_ratio`` r draws them from [length (1 - r), length (1 + r)]."""

    name: str = "random"
    path: Path | None = None
    num_prompts: int = 1000
    seed: int = 0
    random_input_len: int = 1024
    random_output_len: int = 128
    random_range_ratio: float = 0.0
    random_prefix_len: int = 0
    sharegpt_output_len: int | None = None
    custom_output_len: int = 256


def load_prompts(options: DatasetOptions, tokenizer: TextCoder) -> list[Prompt]:
    """``num_prompts`` prompts, the same for the same seed. Raises ConfigError for a file that has none."""
    return DATASETS[options.name](options, tokenizer)


def random_prompts(options: DatasetOptions, tokenizer: TextCoder) -> list[Prompt]:
    """Texts of random tokens, which mean nothing and share nothing but a prefix."""
    rng = random.Random(options.seed)
    ids = _usable_ids(tokenizer, rng)
    prefix = rng.choices(ids, k=options.random_prefix_len)

    def length(mean: int) -> int:
        spread = options.random_range_ratio
        return max(1, rng.randint(int(mean * (1 - spread)), int(mean * (1 + spread))))

    return [
        _prompt(tokenizer, prefix + rng.choices(ids, k=length(options.random_input_len)), length, options)
        for _ in range(options.num_prompts)
    ]


def _usable_ids(tokenizer: TextCoder, rng: random.Random) -> list[int]:
    """Tokens that survive being written and read again beside others: words with a space before them, if there are."""
    ids = [id for id in range(tokenizer.num_text_tokens) if id not in tokenizer.special_ids]
    some = rng.sample(ids, min(TRIED_IDS, len(ids)))
    texts = ((id, tokenizer.decode([id])) for id in some)
    words = [id for id, text in texts if text[:1] == " " and text[1:].isalpha() and text.isascii()]
    return words if len(words) >= ENOUGH_WORDS else ids


def _prompt(
    tokenizer: TextCoder, token_ids: list[int], length: Callable[[int], int], options: DatasetOptions
) -> Prompt:
    """Random tokens seldom survive being written and read again: cut or fill up until the number is right."""
    wanted = len(token_ids)
    for _ in range(8):
        text = tokenizer.decode(token_ids)
        again = tokenizer.encode(text, add_special_tokens=False)
        if len(again) == wanted:
            break
        token_ids = again[:wanted] + token_ids[: wanted - len(again)]
    return Prompt(text, len(again), length(options.random_output_len))


def sharegpt_prompts(options: DatasetOptions, tokenizer: TextCoder) -> list[Prompt]:
    """First turns of conversations: a JSON list of objects whose ``conversations`` are objects with a ``value``."""
    conversations = _json(options)
    if not isinstance(conversations, list):
        raise ConfigError(f"--dataset-path {options.path}: a list of conversations is wanted")
    random.Random(options.seed).shuffle(conversations)
    found = []
    for conversation in conversations:
        turns = conversation.get("conversations", [])
        if len(turns) < 2:
            continue
        num_prompt = len(tokenizer.encode(turns[0]["value"]))
        num_answer = options.sharegpt_output_len or len(tokenizer.encode(turns[1]["value"], add_special_tokens=False))
        if _is_usual(num_prompt, num_answer, is_set=options.sharegpt_output_len is not None):
            found.append(Prompt(turns[0]["value"], num_prompt, num_answer))
        if len(found) == options.num_prompts:
            break
    return _enough(found, options)


def _is_usual(num_prompt: int, num_answer: int, *, is_set: bool) -> bool:
    long_enough = num_prompt >= SHAREGPT_SHORTEST and (is_set or num_answer >= SHAREGPT_SHORTEST)
    return long_enough and num_prompt <= SHAREGPT_LONGEST_PROMPT and num_prompt + num_answer <= SHAREGPT_LONGEST


def custom_prompts(options: DatasetOptions, tokenizer: TextCoder) -> list[Prompt]:
    """Lines of JSON with a ``prompt``, and ``output_tokens`` where a line wants its own number."""
    found = [
        Prompt(
            line["prompt"], len(tokenizer.encode(line["prompt"])), line.get("output_tokens", options.custom_output_len)
        )
        for line in _lines(options)
    ]
    return _enough(found, options)


DATASETS: dict[str, Callable[[DatasetOptions, TextCoder], list[Prompt]]] = {
    "random": random_prompts,
    "sharegpt": sharegpt_prompts,
    "custom": custom_prompts,
}


def _enough(found: list[Prompt], options: DatasetOptions) -> list[Prompt]:
    """The first ``num_prompts``, going round where there are fewer."""
    if not found:
        raise ConfigError(f"--dataset-path {options.path}: no prompt that can be used")
    return [found[index % len(found)] for index in range(options.num_prompts)]


def _text(options: DatasetOptions) -> str:
    if options.path is None:
        raise ConfigError(f"--dataset-name {options.name} reads a file: name it with --dataset-path")
    try:
        return options.path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--dataset-path {options.path}: {error}") from None


def _json(options: DatasetOptions) -> Any:
    try:
        return json.loads(_text(options))
    except ValueError as error:
        raise ConfigError(f"--dataset-path {options.path}: {error}") from None


def _lines(options: DatasetOptions) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(_text(options).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"--dataset-path {options.path}, line {number}: {error}") from None
        if not isinstance(fields, dict) or not isinstance(fields.get("prompt"), str):
            raise ConfigError(f'--dataset-path {options.path}, line {number}: {{"prompt": "..."}} is wanted')
        yield fields
