"""/tokenize, /detokenize and /tokenizer_info."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.server.api_error import ApiError
from octavo.server.context import ServerContext
from octavo.server.conversation import conversation_ids
from octavo.server.responses import json_response


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """``prompt`` as a text, or ``messages`` as a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool | None = None
    truncate_prompt_tokens: int | None = None


class TokenizeResponse(msgspec.Struct, kw_only=True):
    """The ids, and how many a request may have."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Token ids to be read."""

    model: str | None = None
    tokens: list[int]


class DetokenizeResponse(msgspec.Struct, kw_only=True):
    """Their text."""

    prompt: str


class Tokens:
    """The routes."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a text or a conversation."""
        body = await self._context.bodies.read(request, TokenizeRequest)
        self._context.check_model(body.model)
        llm = self._context.llm
        ids = await self._ids(body)
        if body.truncate_prompt_tokens is not None:
            if body.truncate_prompt_tokens < 1:
                name = "truncate_prompt_tokens"
                raise ApiError(400, f"{name} must be at least 1.", param=name)
            ids = ids[-body.truncate_prompt_tokens :]
        names = [llm.tokenizer.convert_id_to_token(each) for each in ids] if body.return_token_strs else None
        return json_response(
            TokenizeResponse(count=len(ids), max_model_len=llm.info.max_model_len, tokens=ids, token_strs=names)
        )

    async def _ids(self, body: TokenizeRequest) -> list[int]:
        llm = self._context.llm
        if (body.prompt is None) == (body.messages is None):
            name = "prompt" if body.messages is None else "messages"
            raise ApiError(400, "give either prompt or messages.", param=name)
        if body.prompt is None:
            adds = body.add_generation_prompt and not body.continue_final_message
            return await conversation_ids(llm, body.messages, continues=body.continue_final_message, adds=adds)
        llm.check_text_length(len(body.prompt))
        encode = partial(llm.tokenizer.encode, body.prompt, body.add_special_tokens is not False)
        return await llm.work_on(len(body.prompt), encode)

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids."""
        body = await self._context.bodies.read(request, DetokenizeRequest)
        self._context.check_model(body.model)
        text = await self._context.llm.work_on(len(body.tokens), partial(self._text_of, body.tokens))
        return json_response(DetokenizeResponse(prompt=text))

    def _text_of(self, token_ids: list[int]) -> str:
        tokenizer = self._context.llm.tokenizer
        wrong = next((each for each in token_ids if not 0 <= each < tokenizer.num_text_tokens), None)
        if wrong is not None:
            raise ApiError(400, f"tokens holds {wrong}, which is no token of this model.", param="tokens")
        return tokenizer.decode(token_ids, skip_special_tokens=False)

    async def tokenizer_info(self, request: Request) -> Response:
        """What a client needs to tokenise like the server."""
        tokenizer = self._context.llm.tokenizer
        return json_response(
            {
                "tokenizer_class": "octavo",
                "bos_token": _token(tokenizer.bos_token_id, tokenizer.convert_id_to_token),
                "eos_token": _token(tokenizer.eos_token_id, tokenizer.convert_id_to_token),
                "bos_token_id": tokenizer.bos_token_id,
                "eos_token_id": tokenizer.eos_token_id,
                "vocab_size": tokenizer.num_text_tokens,
                "model_max_length": self._context.llm.info.max_model_len,
                "chat_template": tokenizer.chat_template,
            }
        )


def _token(token_id: int | None, text_of: Any) -> str | None:
    return None if token_id is None else str(text_of(token_id))
