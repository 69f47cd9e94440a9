"""/v1/models."""

from __future__ import annotations

from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.server.context import ServerContext
from octavo.server.responses import json_response


class ModelCard(msgspec.Struct, kw_only=True):
    """A model that is served. ``max_model_len`` is the longest prompt + output in tokens.

    Of a LoRA adapter ``root`` is the name of its folder, ``parent`` the model that it adapts.
    """

    id: str
    object: str = "model"
    created: int
    owned_by: str = "octavo"
    root: str
    parent: str | None = None
    max_model_len: int


class ModelList(msgspec.Struct, kw_only=True):
    """All models, under every name they have."""

    object: str = "list"
    data: list[ModelCard]


class Models:
    """The routes."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def list_models(self, request: Request) -> Response:
        """Every name under which the model is served."""
        names = [*self._context.model_names, *(adapter.lora_name for adapter in self._context.adapters)]
        return json_response(ModelList(data=[self._card(name) for name in names]))

    async def show_model(self, request: Request) -> Response:
        """One model."""
        return json_response(self._card(self._context.check_model(request.path_params["model"])))

    def _card(self, name: str) -> ModelCard:
        context = self._context
        base, adapter = context.model_names[0], context.adapter_of(name)
        return ModelCard(
            id=name,
            created=context.started,
            root=base if adapter is None else Path(adapter.lora_path).name,
            parent=None if adapter is None else base,
            max_model_len=context.llm.info.max_model_len,
        )
