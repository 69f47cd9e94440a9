"""Every route, in one table, with what OpenAPI says about it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.server.adapters import AdapterRoutes, LoadAdapterRequest, UnloadAdapterRequest
from octavo.server.anthropic.message_words import CountTokensRequest, MessageObject, MessageRequest, TokenCount
from octavo.server.anthropic.messages import Messages
from octavo.server.api_error import ErrorResponse
from octavo.server.context import ServerContext
from octavo.server.development import Development, PauseRequest, RpcRequest
from octavo.server.openai.chat import ChatCompletions
from octavo.server.openai.chat_words import ChatCompletion, ChatCompletionRequest
from octavo.server.openai.compaction import CompactedResponse, CompactRequest
from octavo.server.openai.completions import Completion, CompletionRequest, Completions
from octavo.server.openai.models import ModelCard, ModelList, Models
from octavo.server.openai.pooling import (
    ClassifyRequest,
    EmbeddingRequest,
    PooledList,
    Pooling,
    PoolingRequest,
    RerankAnswer,
    RerankRequest,
    ScoreRequest,
)
from octavo.server.openai.response_words import DeletedResponse, ResponseObject, ResponseRequest
from octavo.server.openai.responses import Responses
from octavo.server.status import Status
from octavo.server.tokens import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
    Tokens,
)
from octavo.server.ui.engine_view import EngineView, EngineViews

ERRORS = {
    400: "The request is wrong; param names the field.",
    401: "No valid API key.",
    403: "A host name that is not served.",
    404: "No such model or thing.",
    405: "Another method is needed.",
    413: "The body is too large.",
    422: "The request cannot be processed.",
    431: "The headers are too large.",
    500: "The request failed in the engine.",
    503: "The engine is not ready, or too many requests wait.",
    504: "The request was not done in its time.",
}

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Route:
    """A path with its endpoint. ``body`` and ``answer`` are what OpenAPI shows; None = none, or any object."""

    tag: str
    methods: tuple[str, ...]
    path: str
    endpoint: Endpoint
    _: KW_ONLY
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None
    streams: bool = False
    answer_type: str = "application/json"


GET, POST, DELETE = ("GET",), ("POST",), ("DELETE",)


def all_routes(context: ServerContext) -> Iterator[Route]:
    """The routes of a server."""
    yield from _status_routes(context)
    yield from _openai_routes(context)
    yield from _response_routes(context)
    yield from _anthropic_routes(context)
    yield from _pooling_routes(context)
    yield from _token_routes(context)
    if not context.config.disable_ui:
        yield Route("page", GET, "/ui/engine/state", EngineViews(context).show, answer=EngineView)
    if context.config.lora_folder is not None:
        yield from _adapter_routes(context, context.config.lora_folder)
    if context.config.dev_mode:
        yield from _development_routes(context)


def _status_routes(context: ServerContext) -> Iterator[Route]:
    get, status = partial(Route, "status", GET), Status(context)
    yield get("/live", status.live)
    yield get("/health", status.health)
    yield get("/version", status.version)
    yield Route("status", GET + POST, "/ping", status.health)
    yield get("/load", status.load)
    yield get("/metrics", status.metrics, answer_type="text/plain")


def _openai_routes(context: ServerContext) -> Iterator[Route]:
    get, post = partial(Route, "openai", GET), partial(Route, "openai", POST)
    models, chats, completions = Models(context), ChatCompletions(context), Completions(context)
    yield get("/v1/models", models.list_models, answer=ModelList)
    yield get("/v1/models/{model:path}", models.show_model, answer=ModelCard)
    yield post("/v1/completions", completions.create, body=CompletionRequest, answer=Completion, streams=True)
    yield post("/v1/chat/completions", chats.create, body=ChatCompletionRequest, answer=ChatCompletion, streams=True)


def _response_routes(context: ServerContext) -> Iterator[Route]:
    get, post, delete = (partial(Route, "openai", method) for method in (GET, POST, DELETE))
    responses, one = Responses(context), "/v1/responses/{response_id}"
    yield post("/v1/responses", responses.create, body=ResponseRequest, answer=ResponseObject, streams=True)
    yield post("/v1/responses/compact", responses.compact, body=CompactRequest, answer=CompactedResponse)
    yield get(one, responses.retrieve, answer=ResponseObject)
    yield delete(one, responses.delete, answer=DeletedResponse)
    yield post(f"{one}/cancel", responses.cancel)


def _anthropic_routes(context: ServerContext) -> Iterator[Route]:
    post, messages = partial(Route, "anthropic", POST), Messages(context)
    yield post("/v1/messages", messages.create, body=MessageRequest, answer=MessageObject, streams=True)
    yield post("/v1/messages/count_tokens", messages.count_tokens, body=CountTokensRequest, answer=TokenCount)


def _pooling_routes(context: ServerContext) -> Iterator[Route]:
    post, pooling = partial(Route, "pooling", POST), Pooling(context)
    yield post("/v1/embeddings", pooling.embeddings, body=EmbeddingRequest, answer=PooledList)
    yield post("/pooling", pooling.pooling, body=PoolingRequest, answer=PooledList)
    yield post("/classify", pooling.classify, body=ClassifyRequest, answer=PooledList)
    for path in ("/score", "/v1/score"):
        yield post(path, pooling.score, body=ScoreRequest, answer=PooledList)
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        yield post(path, pooling.rerank, body=RerankRequest, answer=RerankAnswer)


def _token_routes(context: ServerContext) -> Iterator[Route]:
    get, post = partial(Route, "tokens", GET), partial(Route, "tokens", POST)
    tokens = Tokens(context)
    yield post("/tokenize", tokens.tokenize, body=TokenizeRequest, answer=TokenizeResponse)
    yield post("/detokenize", tokens.detokenize, body=DetokenizeRequest, answer=DetokenizeResponse)
    yield get("/tokenizer_info", tokens.tokenizer_info)


def _adapter_routes(context: ServerContext, folder: str) -> Iterator[Route]:
    post = partial(Route, "adapters", POST, answer_type="text/plain")
    routes = AdapterRoutes(folder, context.state, context.adapters, context.bodies)
    yield post("/v1/load_lora_adapter", routes.load, body=LoadAdapterRequest)
    yield post("/v1/unload_lora_adapter", routes.unload, body=UnloadAdapterRequest)


def _development_routes(context: ServerContext) -> Iterator[Route]:
    get, post = partial(Route, "development", GET), partial(Route, "development", POST)
    development = Development(context)
    yield post("/reset_prefix_cache", development.reset_prefix_cache)
    yield post("/collective_rpc", development.collective_rpc, body=RpcRequest)
    yield post("/pause", development.pause, body=PauseRequest)
    yield post("/resume", development.resume)
    yield get("/is_paused", development.is_paused)
    yield get("/server_info", development.server_info)


# OpenAPI


def openapi_of(route: Route) -> dict[str, Any]:
    """What OpenAPI says beyond the path: its parameters and the body."""
    said: dict[str, Any] = {}
    if names := re.findall(r"{(\w+)", route.path):
        said["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in names
        ]
    if route.body is not None:
        content = {"application/json": {"schema": _reference(route.body)}}
        said["requestBody"] = {"required": True, "content": content}
    return said


def responses_of(route: Route) -> dict[int | str, dict[str, Any]]:
    """The answers that a route may give."""
    schema = {"type": "object"} if route.answer is None else _reference(route.answer)
    content: dict[str, Any] = {route.answer_type: {"schema": schema} if route.answer_type.endswith("json") else {}}
    if route.streams:
        content["text/event-stream"] = {}
    errors: dict[int | str, dict[str, Any]] = {
        status: {"description": words, "content": {"application/json": {"schema": _reference(ErrorResponse)}}}
        for status, words in ERRORS.items()
    }
    return {200: {"description": "Done.", "content": content}, **errors}


def component_schemas(routes: list[Route]) -> dict[str, Any]:
    """JSON schemas of all bodies and answers."""
    kinds = {kind for route in routes for kind in (route.body, route.answer) if kind is not None} | {ErrorResponse}
    _, components = msgspec.json.schema_components(
        sorted(kinds, key=lambda kind: kind.__name__), ref_template="#/components/schemas/{name}"
    )
    return components


def _reference(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
