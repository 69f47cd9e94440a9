"""Routes that change the engine; there with ``--dev-mode`` only."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.server.context import ServerContext
from octavo.server.responses import json_response
from octavo.words.errors import EngineDeadError, EngineError, RequestError


class RpcRequest(msgspec.Struct, kw_only=True):
    """A worker's method by name, with plain arguments."""

    method: str
    args: list[Any] = []


class PauseRequest(msgspec.Struct, kw_only=True):
    """What becomes of requests that run: abort or wait."""

    mode: str = "abort"


class Development:
    """The routes."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def reset_prefix_cache(self, request: Request) -> Response:
        """Forget cached prefixes; false while requests run."""
        return json_response({"reset": await self._context.llm.reset_prefix_cache()})

    async def collective_rpc(self, request: Request) -> Response:
        """Call a method of every worker."""
        body = await self._context.bodies.read(request, RpcRequest)
        try:
            results = await self._context.llm.call("collective_rpc", body.method, *body.args)
        except TypeError as error:
            raise RequestError(f"args cannot be sent to the engine: {error}.", param="args") from error
        except EngineDeadError:
            raise
        except EngineError as error:
            raise RequestError(str(error), param="method") from error
        return json_response({"results": results})

    async def pause(self, request: Request) -> Response:
        """Hold new requests back."""
        body = await self._context.bodies.read(request, PauseRequest)
        await self._context.llm.pause_generation(mode=body.mode)  # type: ignore[arg-type]  # checked there
        return json_response({"paused": True})

    async def resume(self, request: Request) -> Response:
        """Let them go on."""
        await self._context.llm.resume_generation()
        return json_response({"paused": False})

    async def is_paused(self, request: Request) -> Response:
        """Whether new requests are held back."""
        return json_response({"is_paused": self._context.llm.is_paused})

    async def server_info(self, request: Request) -> Response:
        """What was decided at start-up, and what is in the engine now."""
        info, stats = self._context.llm.info, await self._context.llm.call("stats")
        return json_response(
            {
                "max_model_len": info.max_model_len,
                "plan": info.plan.explained(),
                "phases": info.phases,
                "incarnation": info.incarnation,
                "stats": msgspec.structs.asdict(stats),
            }
        )
