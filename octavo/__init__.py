"""Octavo: an LLM inference engine with a paged KV cache, continuous batching and prefix caching.

The public names are loaded when they are first used, so ``import octavo`` imports nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from octavo.config.engine_config import EngineConfig as EngineConfig
    from octavo.config.flat import EngineArgs as AsyncEngineArgs
    from octavo.config.flat import EngineArgs as EngineArgs
    from octavo.frontend.async_llm import AsyncLLM as AsyncLLM
    from octavo.frontend.llm import LLM as LLM
    from octavo.frontend.llm_engine import LLMEngine as LLMEngine
    from octavo.words.beam_search import BeamSearch as BeamSearch
    from octavo.words.beam_search import BeamSearchOutput as BeamSearchOutput
    from octavo.words.beam_search import BeamSearchParams as BeamSearchParams
    from octavo.words.inputs import TextPrompt as TextPrompt
    from octavo.words.inputs import TokensPrompt as TokensPrompt
    from octavo.words.lora import LoRARequest as LoRARequest
    from octavo.words.outputs import CompletionOutput as CompletionOutput
    from octavo.words.outputs import PoolingRequestOutput as PoolingRequestOutput
    from octavo.words.outputs import RequestOutput as RequestOutput
    from octavo.words.pooling_params import PoolingParams as PoolingParams
    from octavo.words.repetition_detection import RepetitionDetectionParams as RepetitionDetectionParams
    from octavo.words.sampling_params import SamplingParams as SamplingParams
    from octavo.words.structured_outputs import StructuredOutputParams as StructuredOutputParams
    from octavo.words.structured_outputs import StructuredOutputParams as StructuredOutputsParams

_HOMES = {
    "AsyncLLM": "octavo.frontend.async_llm",
    "BeamSearch": "octavo.words.beam_search",
    "BeamSearchOutput": "octavo.words.beam_search",
    "BeamSearchParams": "octavo.words.beam_search",
    "CompletionOutput": "octavo.words.outputs",
    "EngineArgs": "octavo.config.flat",
    "EngineConfig": "octavo.config.engine_config",
    "LLM": "octavo.frontend.llm",
    "LLMEngine": "octavo.frontend.llm_engine",
    "LoRARequest": "octavo.words.lora",
    "RequestOutput": "octavo.words.outputs",
    "PoolingParams": "octavo.words.pooling_params",
    "PoolingRequestOutput": "octavo.words.outputs",
    "RepetitionDetectionParams": "octavo.words.repetition_detection",
    "SamplingParams": "octavo.words.sampling_params",
    "StructuredOutputParams": "octavo.words.structured_outputs",
    "TextPrompt": "octavo.words.inputs",
    "TokensPrompt": "octavo.words.inputs",
}

# Other names under which vLLM's users know ours.
_ALIASES = {"AsyncEngineArgs": "EngineArgs", "StructuredOutputsParams": "StructuredOutputParams"}

__all__ = ["LLM", "AsyncEngineArgs", "AsyncLLM", "BeamSearch", "BeamSearchOutput", "BeamSearchParams",
           "CompletionOutput", "EngineArgs", "EngineConfig", "LLMEngine", "LoRARequest", "PoolingParams",
           "PoolingRequestOutput", "RepetitionDetectionParams", "RequestOutput", "SamplingParams",
           "StructuredOutputParams", "StructuredOutputsParams", "TextPrompt", "TokensPrompt",
           "__version__"]  # fmt: skip


def __getattr__(name: str) -> Any:
    name = _ALIASES.get(name, name)
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}; it has {', '.join(_HOMES)}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
