"""What happens when the engine core fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from octavo.config.fields import Option


@dataclass(frozen=True, kw_only=True)
class SupervisionConfig:
    """What the user asked about a core in a background process that dies or hangs (AsyncLLM and the server)."""

    on_engine_death: Annotated[
        str,
        Option(
            "restart = start the core again and go on with the requests in flight; exit = end them with an error.",
            choices=("restart", "exit"),
        ),
    ] = "restart"
    max_engine_restarts: Annotated[
        int, Option("Most restarts of the core in a row of which none brings a token.", at_least=0)
    ] = 5
    engine_stuck_timeout: Annotated[
        float,
        Option(
            "Seconds without progress, with requests in flight, after which the core is taken for stuck and killed; "
            "at least 20 times what its step should take.",
            at_least=0.1,
        ),
    ] = 60.0
