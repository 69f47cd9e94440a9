"""The start of a front end: the core, and beside it the parts that turn words into tokens and back."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from octavo.checkpoint.generation_config import GenerationConfig, read_generation_config
from octavo.checkpoint.resolve import Checkpoint
from octavo.config.engine_config import EngineConfig
from octavo.engine.build import find_checkpoint, find_tokenizer
from octavo.engine.client import EngineCoreClient
from octavo.engine.info import EngineInfo
from octavo.engine.phases import Phases
from octavo.engine.stats import LoggingStatLogger, StatLogger
from octavo.frontend.input_processor import InputProcessor
from octavo.frontend.load_tokenizer import load_tokenizer
from octavo.frontend.output_processor import OutputProcessor
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.util.collector import paused_collector

Seeds = Callable[[int], int]


class FrontEndParts(NamedTuple):
    """What LLMEngine and AsyncLLM are made of."""

    client: EngineCoreClient
    tokenizer: Tokenizer
    input_processor: InputProcessor
    output_processor: OutputProcessor


def start_front_end(
    config: EngineConfig, make_client: Callable[[EngineConfig], EngineCoreClient], *, seeds: Seeds | None = None
) -> FrontEndParts:
    """Start a core with ``make_client``; the tokenizer is loaded meanwhile. Raises what makes a start impossible."""
    with paused_collector():
        checkpoint = find_checkpoint(config)
        generation_config = GenerationConfig() if checkpoint is None else read_generation_config(checkpoint)
        with ThreadPoolExecutor(1, thread_name_prefix="octavo-tokenizer") as pool:
            loading = pool.submit(_load_tokenizer, config, checkpoint)
            client = make_client(config)
        try:
            return _assemble(config, client, loading.result(), generation_config, seeds)
        except BaseException:
            client.shutdown()
            raise


def default_stat_loggers(config: EngineConfig, info: EngineInfo) -> tuple[StatLogger, ...]:
    """The loggers that an engine has unless it is told otherwise."""
    return () if config.observability.disable_log_stats else (LoggingStatLogger(device=info.plan.device),)


def _assemble(
    config: EngineConfig,
    client: EngineCoreClient,
    tokenizer: Tokenizer,
    generation_config: GenerationConfig,
    seeds: Seeds | None,
) -> FrontEndParts:
    info = client.info
    inputs = InputProcessor(
        tokenizer,
        info.facts,
        generation_config,
        config,
        info.max_model_len,
        max_request_len=info.max_tokens_that_fit,
        runner=info.plan.runner,
        seeds=seeds,
    )
    return FrontEndParts(client, tokenizer, inputs, OutputProcessor(tokenizer))


def _load_tokenizer(config: EngineConfig, model: Checkpoint | None) -> Tokenizer:
    with Phases()("tokenizer, meanwhile"):
        return load_tokenizer(find_tokenizer(config, model), chat_template=config.model.chat_template)
