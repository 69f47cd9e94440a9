"""From what a user gives as a prompt to checked tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from octavo.frontend.prompt_embeds import checked_embeds
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.words.errors import RequestError
from octavo.words.inputs import PromptType

_PROMPT_KEYS = frozenset({"prompt", "prompt_token_ids", "prompt_embeds", "cache_salt", "priority"})
_MAX_SALT_CHARACTERS = 4096
# Every vocabulary has tokens of so many characters.
_SHORT_TOKEN = 8


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt that can be served: ``embeds`` are float32 rows in place of its tokens, whose ids then mean nothing."""

    token_ids: list[int]
    cache_salt: str | None
    priority: int
    embeds: bytes = b""


@dataclass(frozen=True, kw_only=True)
class PromptLimits:
    """What a prompt must keep to.

    ``max_model_len`` is the fitted length of the engine; ``max_request_len`` is less where the KV cache is smaller.
    ``may_be_cut``: it is a text to pool, of which what is too much can be left out. ``takes_embeds``: vectors of
    ``hidden_size`` may stand for its tokens. ``ranks_by_priority``: a priority means something.
    """

    max_model_len: int
    max_request_len: int
    vocab_size: int
    hidden_size: int
    may_be_cut: bool
    takes_embeds: bool
    ranks_by_priority: bool


class PromptReader:
    """Checks and tokenises prompts. Thread-safe. All it refuses is a RequestError."""

    def __init__(self, tokenizer: Tokenizer, limits: PromptLimits) -> None:
        self._tokenizer = tokenizer
        self._limits = limits

    def read(self, prompt: object, priority: int) -> Prompt:
        """A prompt of any form; a priority of its own goes before ``priority``."""
        if isinstance(prompt, str):
            return self._checked(self._encode(prompt), None, priority)
        if isinstance(prompt, list | tuple):
            return self._checked(prompt, None, priority)
        if not isinstance(prompt, Mapping):
            raise RequestError(
                f"a prompt is text, a list of token ids, or an object with prompt or prompt_token_ids; "
                f"got {type(prompt).__name__}.",
                param="prompt",
            )
        return self._read_mapping(prompt, priority)

    def check_text_length(self, num_characters: int) -> None:
        """Refuse a text that is too long whatever its tokens are, before a tokenizer works on it for minutes."""
        limit = self._limits.max_model_len
        if num_characters <= _SHORT_TOKEN * limit:
            return
        if num_characters > self._tokenizer.longest_token * limit:
            raise RequestError(
                f"This model's maximum context length is {limit} tokens. The prompt has {num_characters} characters, "
                "more than so many tokens can have; shorten it.",
                param="prompt",
            )

    def read_pair(self, pair: tuple[str, str], *, cut: bool) -> tuple[Prompt, int]:
        """[CLS] first [SEP] second [SEP], as encoders read two texts; and where the second begins. ``cut``: to fit."""
        first, behind = self._tokenizer.encode_pair(*pair)
        room = self._limits.max_model_len - len(first)
        if cut and len(behind) > room > 1:
            behind = [*behind[: room - 1], behind[-1]]
        return self._checked(first + behind, None, 0), len(first)

    def truncated(self, prompt: Prompt, asked: int | None) -> Prompt:
        """The text cut to what is asked (-1: what the model takes), its ending special token kept."""
        if asked is None:
            return prompt
        token_ids = prompt.token_ids
        most = self._limits.max_model_len if asked == -1 else min(asked, self._limits.max_model_len)
        if len(token_ids) <= most:
            return prompt
        ending = token_ids[len(token_ids) - self._tokenizer.num_suffix_tokens :]
        return replace(prompt, token_ids=token_ids[: max(most - len(ending), 0)] + ending)

    def last_tokens(self, prompt: Prompt, asked: int | None, max_tokens: int) -> Prompt:
        """The last tokens, as many as asked (-1: what fits before ``max_tokens``); the prompt's end is the question."""
        if asked is None or prompt.embeds:
            return prompt
        most = max(self._limits.max_model_len - max_tokens, 1) if asked == -1 else asked
        return replace(prompt, token_ids=prompt.token_ids[-most:])

    def _read_mapping(self, prompt: Mapping[str, Any], priority: int) -> Prompt:
        if unknown := set(prompt) - _PROMPT_KEYS:
            names, known = (", ".join(sorted(map(str, keys))) for keys in (unknown, _PROMPT_KEYS))
            raise RequestError(f"a prompt has no {names}; it may have {known}.", param="prompt")
        if "prompt_embeds" in prompt:
            return self._read_embeds(prompt, priority)
        text, token_ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if text is not None and not isinstance(text, str):
            raise RequestError(f"prompt must be text, got {type(text).__name__}.", param="prompt")
        if text is None and token_ids is None:
            raise RequestError("a prompt needs prompt or prompt_token_ids.", param="prompt")
        ids = self._encode(str(text)) if token_ids is None else token_ids
        return self._checked(ids, prompt.get("cache_salt"), prompt.get("priority", priority))

    def _read_embeds(self, prompt: Mapping[str, Any], priority: int) -> Prompt:
        if not self._limits.takes_embeds:
            raise RequestError(
                "prompt_embeds are not taken here: start an engine that generates with --enable-prompt-embeds.",
                param="prompt_embeds",
            )
        if "prompt" in prompt or "prompt_token_ids" in prompt:
            raise RequestError("give prompt_embeds, or a prompt of text or tokens, not both.", param="prompt_embeds")
        embeds = checked_embeds(prompt["prompt_embeds"], self._limits.hidden_size)
        placeholders = [0] * len(embeds)
        checked = self._checked(placeholders, prompt.get("cache_salt"), prompt.get("priority", priority))
        return replace(checked, embeds=embeds.tobytes())

    def _encode(self, text: str) -> list[int]:
        self.check_text_length(len(text))
        return self._tokenizer.encode(text)

    def _checked(self, token_ids: object, cache_salt: object, priority: object) -> Prompt:
        if not isinstance(token_ids, list | tuple):
            name = "prompt_token_ids"
            raise RequestError(f"{name} must be a list of integers, got {type(token_ids).__name__}.", param=name)
        if not token_ids:
            raise RequestError("the prompt is empty; give at least one token.", param="prompt")
        if not self._limits.may_be_cut:
            self._check_length(len(token_ids))
        ids = in_vocabulary("prompt_token_ids", token_ids, self._limits.vocab_size)
        return Prompt(token_ids=ids, cache_salt=_checked_salt(cache_salt), priority=self._checked_priority(priority))

    def _checked_priority(self, priority: object) -> int:
        if not isinstance(priority, int) or isinstance(priority, bool) or not -(2**31) <= priority < 2**31:
            raise RequestError(f"priority must be an integer of 32 bits, got {priority!r:.40}.", param="priority")
        if priority and not self._limits.ranks_by_priority:
            raise RequestError(
                f"priority {priority} means nothing under the fcfs policy: leave it out, or start the engine with "
                f"--scheduling-policy priority.",
                param="priority",
            )
        return priority

    def _check_length(self, num_tokens: int) -> None:
        limit = self._limits.max_model_len
        if num_tokens > limit:
            raise RequestError(
                f"This model's maximum context length is {limit} tokens. The prompt has {num_tokens}; shorten it.",
                param="prompt",
            )
        if num_tokens == limit:
            raise RequestError(
                f"This model's maximum context length is {limit} tokens. The prompt has all {num_tokens} of them, "
                "which leaves no room for an output token; shorten it.",
                param="prompt",
            )
        if num_tokens >= self._limits.max_request_len:
            raise RequestError(
                f"the prompt has {num_tokens} tokens, and the whole KV cache holds {self._limits.max_request_len} with "
                "its answer; shorten it or enlarge the cache (kv_cache_memory_bytes, num_gpu_blocks_override).",
                param="prompt",
            )


def prompt_text(prompt: PromptType) -> str | None:
    """The text of a prompt, None for one that has token ids only."""
    if isinstance(prompt, str):
        return prompt
    text = prompt.get("prompt") if isinstance(prompt, Mapping) else None
    return text if isinstance(text, str) else None


def in_vocabulary(name: str, token_ids: Iterable[Any], vocab_size: int) -> list[int]:
    """Return the ids as a list; RequestError naming the first that the model has no row for."""
    ids = list(token_ids)
    for place, token_id in enumerate(ids):
        if type(token_id) is not int:
            ids[place] = token_id = _plain_int(name, token_id)
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"{name} holds {token_id}, which is outside the model's vocabulary (0 to {vocab_size - 1}).",
                param=name,
            )
    return ids


def _checked_salt(salt: object) -> str | None:
    if salt is None or (isinstance(salt, str) and 0 < len(salt) <= _MAX_SALT_CHARACTERS and _is_unicode(salt)):
        return salt
    raise RequestError(
        f"cache_salt must be Unicode text of 1 to {_MAX_SALT_CHARACTERS} characters.", param="cache_salt"
    )


def _is_unicode(text: str) -> bool:
    """Whether no half of a surrogate pair stands alone; such text cannot be sent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain_int(name: str, value: Any) -> int:
    """A numpy integer is an integer; a bool, a float or a string is none."""
    if not isinstance(value, bool | float | str) and hasattr(value, "__index__"):
        return int(value.__index__())
    raise RequestError(f"{name} must hold integers, got {value!r:.80}.", param=name)
