"""What the engine tells about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from octavo.config.fields import Option


@dataclass(frozen=True, kw_only=True)
class ObservabilityConfig:
    """What the user asked about logs and statistics."""

    disable_log_stats: Annotated[bool, Option("Do not collect and log engine statistics.")] = False
    plugins: Annotated[
        str | None,
        Option("Comma-separated names of octavo.plugins entry points to load (default: all; empty: none)."),
    ] = None
    otlp_traces_endpoint: Annotated[
        str | None,
        Option(
            "URL that takes OTLP spans over HTTP (http://HOST:4318/v1/traces), one for each request; "
            "needs octavo[otlp]."
        ),
    ] = None
