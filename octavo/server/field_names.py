"""What the clients of a route call the engine's parameters, so that an error names a field of the request."""

from __future__ import annotations

from collections.abc import Mapping

_GENERATION: Mapping[str, str | None] = {"extra_args": "vllm_xargs"}
_COMPLETION = {**_GENERATION, "prompt_token_ids": "prompt"}
_CHAT = {**_GENERATION, "prompt_token_ids": "messages", "prompt": "messages", "logprobs": "top_logprobs"}
_RESPONSE = {
    **_GENERATION,
    "prompt_token_ids": "input",
    "prompt": "input",
    "messages": "input",
    "logprobs": "top_logprobs",
    "max_tokens": "max_output_tokens",
}
_MESSAGE = {"prompt_token_ids": "messages", "prompt": "messages", "stop": "stop_sequences"}
_POOLING = {"prompt_token_ids": "input", "prompt": "input"}
_OF_A_TASK = {**_POOLING, "task": "model"}
_PAIRS: Mapping[str, str | None] = {"prompt": None, "task": "model"}  # which of its texts is wrong is not known

_FIELDS: Mapping[str, Mapping[str, str | None]] = {
    "/v1/completions": _COMPLETION,
    "/v1/chat/completions": _CHAT,
    "/v1/responses": _RESPONSE,
    "/v1/responses/compact": _RESPONSE,
    "/v1/messages": _MESSAGE,
    "/v1/embeddings": _OF_A_TASK,
    "/pooling": _POOLING,
    "/classify": _OF_A_TASK,
    **dict.fromkeys(("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"), _PAIRS),
}


def field_of(path: str, param: str | None) -> str | None:
    """The field of a request to ``path`` that sets the engine's parameter ``param``; None where none does."""
    return None if param is None else _FIELDS.get(path, {}).get(param, param)
