"""/v1/responses/compact: a long conversation as what its users said and the model's own summary of the rest.

The summary goes to the client in an item of type ``compaction``, whose ``encrypted_content`` is opaque by name only: it
is the summary, encoded, since the server keeps nothing and the conversation is the client's own.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from octavo.server.api_error import ApiError
from octavo.server.openai.response_words import ResponseObject, ResponseRequest, ResponseUsage

MAX_SUMMARY_TOKENS = 1024
KEPT_ROLES = ("system", "developer", "user")
REQUEST = (
    "Summarize this conversation for someone who will continue it and cannot see it: what was asked, what was found "
    "and decided, names and numbers, and what is still open. Write only the summary, in the conversation's language."
)
INTRODUCTION = "Summary of the conversation so far:\n"


class CompactRequest(msgspec.Struct, kw_only=True):
    """The body of a request: a conversation as for /v1/responses."""

    model: str
    input: Any = None
    instructions: str | None = None
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    request_timeout: float | None = None


class InputText(msgspec.Struct, kw_only=True):
    """Text that was said to the model."""

    type: str = "input_text"
    text: str


class KeptMessage(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    """A message that stays as it is."""

    id: str
    status: str = "completed"
    role: str
    content: list[InputText]


class CompactionItem(msgspec.Struct, kw_only=True, tag_field="type", tag="compaction"):
    """A summary."""

    id: str
    encrypted_content: str


CompactedItem: TypeAlias = KeptMessage | CompactionItem


class CompactedResponse(msgspec.Struct, kw_only=True):
    """The shorter conversation: items to begin the next ``input`` with."""

    id: str
    object: str = "response.compaction"
    created_at: int
    output: list[CompactedItem]
    usage: ResponseUsage


def summary_request(body: CompactRequest) -> ResponseRequest:
    """The request that the model answers with a summary."""
    return ResponseRequest(
        model=body.model,
        input=REQUEST,
        instructions=body.instructions,
        max_output_tokens=MAX_SUMMARY_TOKENS,
        store=False,
        request_timeout=body.request_timeout,
    )


def compacted(messages: Sequence[dict[str, Any]], summary: str | None, answer: ResponseObject) -> CompactedResponse:
    """The conversation ``messages`` with its summary, which ``answer`` brought. Raises ApiError where there is none."""
    if not summary or not summary.strip() or answer.usage is None:
        raise ApiError(500, "the model wrote no summary of this conversation.")
    kept = [_kept(message) for message in messages if message["role"] in KEPT_ROLES]
    item = CompactionItem(id=f"cmp_{secrets.token_hex(16)}", encrypted_content=_encoded(summary.strip()))
    return CompactedResponse(id=answer.id, created_at=answer.created_at, output=[*kept, item], usage=answer.usage)


def said_by(encrypted_content: Any, where: str) -> str:
    """What a compaction item tells the model. Raises ApiError for content that is none of ours."""
    try:
        return INTRODUCTION + base64.b64decode(encrypted_content, validate=True).decode()
    except (TypeError, ValueError, binascii.Error) as error:
        message = f"{where}.encrypted_content must be that of a compaction item of this server."
        raise ApiError(400, message, param="input") from error


def _encoded(summary: str) -> str:
    return base64.b64encode(summary.encode()).decode()


def _kept(message: dict[str, Any]) -> KeptMessage:
    content = message["content"]
    texts = [content] if isinstance(content, str) else [part["text"] for part in content or ()]
    parts = [InputText(text=text) for text in texts]
    return KeptMessage(id=f"msg_{secrets.token_hex(16)}", role=message["role"], content=parts)
