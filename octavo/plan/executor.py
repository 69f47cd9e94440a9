"""Who runs steps."""

from __future__ import annotations

from octavo.config.engine_config import EngineConfig


def executor_backend(config: EngineConfig) -> str:
    """As asked, but simulated where no weights are loaded: there is nothing to run steps on."""
    return "simulated" if config.load.load_format == "mock" else config.parallel.distributed_executor_backend
