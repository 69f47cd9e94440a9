"""The forms a prompt may have."""

from __future__ import annotations

from typing import Any, NotRequired, TypeAlias, TypedDict


class TextPrompt(TypedDict):
    """A prompt as text. ``cache_salt`` keeps its prefix-cache blocks apart from those of other salts."""

    prompt: str
    cache_salt: NotRequired[str]
    priority: NotRequired[int]


class TokensPrompt(TypedDict):
    """A prompt as token ids, taken as they are (no special token is added)."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]
    priority: NotRequired[int]


class EmbedsPrompt(TypedDict):
    """A prompt as embeddings, [tokens, hidden_size] of float32 or float16 (numpy or torch), where an engine takes them.

    They stand in place of the rows of the model's embedding, after whatever the model scales these by.
    """

    prompt_embeds: Any
    cache_salt: NotRequired[str]
    priority: NotRequired[int]


PromptType: TypeAlias = str | list[int] | TextPrompt | TokensPrompt | EmbedsPrompt
