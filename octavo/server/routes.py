"""Every route, in one table, with what OpenAPI says about it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
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
from octavo.server.openai.chat import ChatCompletion, ChatCompletionRequest, ChatCompletions
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


@dataclass(frozen=True, kw_only=True)
class Route:
    """A path with its endpoint. ``body`` and ``answer`` are what OpenAPI shows; None = none, or any object."""

    path: str
    endpoint: Endpoint
    methods: tuple[str, ...] = ("GET",)
    tag: str
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None
    streams: bool = False
    answer_type: str = "application/json"


def all_routes(context: ServerContext) -> Iterator[Route]:
    """The routes of a server."""
    yield from _status_routes(context)
    yield from _openai_routes(context)
    yield from _response_routes(context)
    yield from _anthropic_routes(context)
    yield from _pooling_routes(context)
    yield from _token_routes(context)
    if not context.config.disable_ui:
        yield Route(path="/ui/engine/state", endpoint=EngineViews(context).show, tag="page", answer=EngineView)
    if context.config.lora_folder is not None:
        yield from _adapter_routes(context, context.config.lora_folder)
    if context.config.dev_mode:
        yield from _development_routes(context)


def _status_routes(context: ServerContext) -> Iterator[Route]:
    status = Status(context)
    for path, endpoint in (("/live", status.live), ("/health", status.health), ("/version", status.version)):
        yield Route(path=path, endpoint=endpoint, tag="status")
    yield Route(path="/ping", endpoint=status.health, methods=("GET", "POST"), tag="status")
    yield Route(path="/load", endpoint=status.load, tag="status")
    yield Route(path="/metrics", endpoint=status.metrics, tag="status", answer_type="text/plain")


def _openai_routes(context: ServerContext) -> Iterator[Route]:
    models = Models(context)
    yield Route(path="/v1/models", endpoint=models.list_models, tag="openai", answer=ModelList)
    yield Route(path="/v1/models/{model:path}", endpoint=models.show_model, tag="openai", answer=ModelCard)
    yield Route(
        path="/v1/completions",
        endpoint=Completions(context).create,
        methods=("POST",),
        tag="openai",
        body=CompletionRequest,
        answer=Completion,
        streams=True,
    )
    yield Route(
        path="/v1/chat/completions",
        endpoint=ChatCompletions(context).create,
        methods=("POST",),
        tag="openai",
        body=ChatCompletionRequest,
        answer=ChatCompletion,
        streams=True,
    )


def _response_routes(context: ServerContext) -> Iterator[Route]:
    responses = Responses(context)
    path = "/v1/responses"
    yield Route(
        path=path,
        endpoint=responses.create,
        methods=("POST",),
        tag="openai",
        body=ResponseRequest,
        answer=ResponseObject,
        streams=True,
    )
    path += "/{response_id}"
    delete = ("DELETE",)
    yield Route(path=path, endpoint=responses.retrieve, tag="openai", answer=ResponseObject)
    yield Route(path=path, endpoint=responses.delete, methods=delete, tag="openai", answer=DeletedResponse)
    yield Route(path=f"{path}/cancel", endpoint=responses.cancel, methods=("POST",), tag="openai")


def _anthropic_routes(context: ServerContext) -> Iterator[Route]:
    messages = Messages(context)
    yield Route(
        path="/v1/messages",
        endpoint=messages.create,
        methods=("POST",),
        tag="anthropic",
        body=MessageRequest,
        answer=MessageObject,
        streams=True,
    )
    yield Route(
        path="/v1/messages/count_tokens",
        endpoint=messages.count_tokens,
        methods=("POST",),
        tag="anthropic",
        body=CountTokensRequest,
        answer=TokenCount,
    )


def _pooling_routes(context: ServerContext) -> Iterator[Route]:
    pooling = Pooling(context)
    bodies: list[tuple[tuple[str, ...], Endpoint, type[msgspec.Struct], type[msgspec.Struct]]] = [
        (("/v1/embeddings",), pooling.embeddings, EmbeddingRequest, PooledList),
        (("/pooling",), pooling.pooling, PoolingRequest, PooledList),
        (("/classify",), pooling.classify, ClassifyRequest, PooledList),
        (("/score", "/v1/score"), pooling.score, ScoreRequest, PooledList),
        (("/rerank", "/v1/rerank", "/v2/rerank"), pooling.rerank, RerankRequest, RerankAnswer),
    ]
    for paths, endpoint, body, answer in bodies:
        for path in paths:
            yield Route(path=path, endpoint=endpoint, methods=("POST",), tag="pooling", body=body, answer=answer)


def _token_routes(context: ServerContext) -> Iterator[Route]:
    tokens = Tokens(context)
    yield Route(
        path="/tokenize",
        endpoint=tokens.tokenize,
        methods=("POST",),
        tag="tokens",
        body=TokenizeRequest,
        answer=TokenizeResponse,
    )
    yield Route(
        path="/detokenize",
        endpoint=tokens.detokenize,
        methods=("POST",),
        tag="tokens",
        body=DetokenizeRequest,
        answer=DetokenizeResponse,
    )
    yield Route(path="/tokenizer_info", endpoint=tokens.tokenizer_info, tag="tokens")


def _adapter_routes(context: ServerContext, folder: str) -> Iterator[Route]:
    routes = AdapterRoutes(folder, context.state, context.adapters, context.bodies)
    for path, endpoint, body in (
        ("/v1/load_lora_adapter", routes.load, LoadAdapterRequest),
        ("/v1/unload_lora_adapter", routes.unload, UnloadAdapterRequest),
    ):
        yield Route(
            path=path, endpoint=endpoint, methods=("POST",), tag="adapters", body=body, answer_type="text/plain"
        )


def _development_routes(context: ServerContext) -> Iterator[Route]:
    development = Development(context)
    post = ("POST",)
    yield Route(path="/reset_prefix_cache", endpoint=development.reset_prefix_cache, methods=post, tag="development")
    yield Route(
        path="/collective_rpc", endpoint=development.collective_rpc, methods=post, tag="development", body=RpcRequest
    )
    yield Route(path="/pause", endpoint=development.pause, methods=post, tag="development", body=PauseRequest)
    yield Route(path="/resume", endpoint=development.resume, methods=post, tag="development")
    yield Route(path="/is_paused", endpoint=development.is_paused, tag="development")
    yield Route(path="/server_info", endpoint=development.server_info, tag="development")


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
