"""Whether the server lives, whether it can serve, and how much it does."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from octavo import __version__
from octavo.server.context import ServerContext
from octavo.server.engine_state import Phase
from octavo.server.metrics import CONTENT_TYPE, metrics_page
from octavo.server.responses import json_response


class Status:
    """The routes that probes and balancers ask."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def live(self, request: Request) -> Response:
        """200 while the process has a future: also while it loads."""
        phase = self._context.state.phase
        return json_response({"status": str(phase)}, 503 if phase is Phase.DEAD else 200)

    async def health(self, request: Request) -> Response:
        """200 when requests are answered, else 503."""
        phase = self._context.state.phase
        answer = json_response({"status": str(phase)}, 200 if phase is Phase.READY else 503)
        if phase is not Phase.READY:
            answer.headers["retry-after"] = "1"
        return answer

    async def version(self, request: Request) -> Response:
        """The version of Octavo."""
        return json_response({"version": __version__})

    async def load(self, request: Request) -> Response:
        """HTTP requests that are being answered, this one left out."""
        return json_response({"server_load": self._context.load.num_requests - 1})

    async def metrics(self, request: Request) -> Response:
        """Counters, gauges and histograms for Prometheus; also while the engine recovers or the server drains."""
        labels = {"model_name": self._context.model_names[0], "engine": "0"}
        metrics = await self._context.state.loaded_llm.get_metrics()
        metrics += self._context.tool_calls.metrics()
        return Response(metrics_page(metrics, labels), media_type=CONTENT_TYPE)
