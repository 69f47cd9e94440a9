"""What every route is handed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property

from starlette.requests import Request

from octavo.config.server import ServerConfig
from octavo.frontend.async_llm import AsyncLLM
from octavo.frontend.input_processor import PreparedRequest
from octavo.server.adapters import AdapterNames
from octavo.server.api_error import ApiError
from octavo.server.body import BodyReader
from octavo.server.dialect import AnswerPlan, Dialect
from octavo.server.engine_state import EngineState
from octavo.server.gate import ServerLoad
from octavo.server.tool_call_counts import ToolCallCounts
from octavo.words.inputs import PromptType
from octavo.words.lora import LoRARequest
from octavo.words.sampling_params import SamplingParams


@dataclass(frozen=True, kw_only=True)
class ServerContext:
    """The engine, what was asked of the server, and what its routes share. ``model_names`` has at least one.

    ``adapters`` are models too, under names of their own.
    """

    state: EngineState
    config: ServerConfig
    model_names: tuple[str, ...]
    bodies: BodyReader
    adapters: AdapterNames = field(default_factory=AdapterNames)
    load: ServerLoad = field(default_factory=ServerLoad)
    tool_calls: ToolCallCounts = field(default_factory=ToolCallCounts)
    started: int = field(default_factory=lambda: int(time.time()))

    def now(self) -> int:
        """Seconds since 1970, for the answers' created."""
        return int(time.time())

    @property
    def llm(self) -> AsyncLLM:
        """The engine, or the error that a client gets while there is none."""
        return self.state.llm

    @cached_property
    def dialect(self) -> Dialect:
        """How the model writes thoughts and calls; known once the engine is ready."""
        return Dialect(self.llm.tokenizer, self.config, self.tool_calls)

    def check_model(self, name: str | None) -> str:
        """The name to answer with; ApiError 404 for a model that is not served. None means whatever is served."""
        if not name:
            return self.model_names[0]
        if name in self.model_names or self.adapters.get(name) is not None:
            return name
        raise ApiError(404, f"the model {name[:200]!r} does not exist here.", param="model", code="model_not_found")

    def check_generator(self, name: str | None) -> str:
        """As ``check_model``; RequestError for a model that pools, before anything is asked of its chat template."""
        model = self.check_model(name)
        self.llm.check_generates()
        return model

    async def prepare(
        self,
        prompt: PromptType,
        params: SamplingParams,
        request_id: str,
        plan: AnswerPlan,
        adapter: LoRARequest | None,
        *,
        priority: int | None = None,
    ) -> PreparedRequest:
        """A request for an answer that is read as ``plan`` says. Raises what ``AsyncLLM.prepare`` does."""
        return await self.llm.prepare(
            prompt,
            params,
            request_id,
            priority=priority,
            reasoning_end_ids=plan.reasoning_end_ids,
            reasoning_style=self.dialect.style,
            lora_request=adapter,
        )

    def adapter_of(self, model: str) -> LoRARequest | None:
        """The LoRA adapter that a served model is, None for the base model."""
        return self.adapters.get(model)


def request_id_of(request: Request) -> str:
    """The id of a request, as its answer will show it."""
    return str(request.scope["state"]["request_id"])
