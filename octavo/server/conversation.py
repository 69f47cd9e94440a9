"""A conversation in one of the three interfaces, on its way to an engine request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from octavo.frontend.async_llm import AsyncLLM


async def conversation_ids(
    llm: AsyncLLM,
    messages: Any,
    *,
    tools: list[dict[str, Any]] | None = None,
    continues: bool = False,
    adds: bool | None = None,
    **options: Any,
) -> list[int]:
    """The conversation as the model's template writes it, as tokens. Raises RequestError naming what is wrong.

    ``continues`` goes on with the last message; ``adds`` (None: unless it continues) opens an answer. ``options`` are
    further variables of the template.
    """
    size = text_size(messages) + text_size(tools)
    llm.check_text_length(size)
    render = partial(
        llm.tokenizer.apply_chat_template,
        messages,
        tools=tools,
        add_generation_prompt=not continues if adds is None else adds,
        continue_final_message=continues,
        **options,
    )
    return await llm.work_on(size + text_size(options), render)


def text_size(value: Any) -> int:
    """Characters in a JSON value, all together; what is no text counts as one."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(text_size(item) for item in value.values())
    if isinstance(value, Sequence):
        return sum(map(text_size, value))
    return 1
