"""How long requests may be, how many tokens and requests a step has, and how many steps are in flight."""

from __future__ import annotations

from octavo.config.engine_config import EngineConfig
from octavo.plan.decision import Decision, as_asked
from octavo.plan.executor import executor_backend
from octavo.words.errors import ConfigError
from octavo.words.model_facts import ModelFacts

DEFAULT_BLOCK_SIZE = 32
DEFAULT_MAX_NUM_BATCHED_TOKENS = 2048
DEFAULT_MAX_NUM_SEQS = 128
MAX_STEPS_IN_FLIGHT = {"uni": 1, "simulated": 2}


def decide_max_model_len(config: EngineConfig, facts: ModelFacts) -> Decision[int | None]:
    """The greatest length of a request; None where profiling has yet to tell. Raises ConfigError."""
    asked = config.model.max_model_len
    if asked is None:
        return Decision(facts.max_position, "the model's own")
    if asked == "auto":
        return Decision(None, "auto: fitted to the KV memory after profiling")
    length = int(asked)
    if length > facts.max_position:
        raise ConfigError(
            f"max_model_len={length} cannot be had: the model has {facts.max_position} positions; "
            f"give at most {facts.max_position}, or leave it out"
        )
    return Decision(length, "as asked")


def decide_block_size(config: EngineConfig) -> Decision[int | None]:
    """Tokens of a block of the KV cache."""
    if config.cache.block_size is not None:
        return Decision(config.cache.block_size, "as asked")
    return Decision(DEFAULT_BLOCK_SIZE, "default on a CPU")


def decide_step_budgets(config: EngineConfig, longest: int, is_encoder: bool) -> tuple[Decision[int], Decision[int]]:
    """Tokens and requests per step: each running request needs a token, each whole prompt all of its tokens."""
    asked_tokens, asked_seqs = config.scheduler.max_num_batched_tokens, config.scheduler.max_num_seqs
    _check_threshold(config, longest)
    tokens = _tokens(config, longest, is_encoder)
    if asked_seqs is None:
        if tokens.value >= DEFAULT_MAX_NUM_SEQS:
            return tokens, Decision(DEFAULT_MAX_NUM_SEQS, "default on a CPU")
        reason = f"lowered to max_num_batched_tokens={tokens.value}: each request needs a token"
        return tokens, Decision(tokens.value, reason)
    if tokens.value >= asked_seqs:
        return tokens, Decision(asked_seqs, "as asked")
    if asked_tokens is None:
        raised = Decision(asked_seqs, f"raised to max_num_seqs={asked_seqs}: each request needs a token")
        return raised, Decision(asked_seqs, "as asked")
    raise ConfigError(
        f"max_num_batched_tokens={asked_tokens} is less than max_num_seqs={asked_seqs}: a step could not hold "
        "one token of each request; raise the first or lower the second"
    )


def _check_threshold(config: EngineConfig, longest: int) -> None:
    threshold = config.scheduler.long_prefill_token_threshold
    if threshold > longest:
        raise ConfigError(
            f"long_prefill_token_threshold={threshold} is more than max_model_len={longest} and would do nothing; "
            "lower it, or leave it out"
        )


def _tokens(config: EngineConfig, longest: int, is_encoder: bool) -> Decision[int]:
    asked = config.scheduler.max_num_batched_tokens
    whole_prompts = not config.scheduler.enable_chunked_prefill or is_encoder
    if asked is None:
        if whole_prompts and longest > DEFAULT_MAX_NUM_BATCHED_TOKENS:
            return Decision(longest, f"raised to max_model_len={longest}: prompts are not split over steps")
        return Decision(DEFAULT_MAX_NUM_BATCHED_TOKENS, "default on a CPU")
    if whole_prompts and asked < longest:
        raise ConfigError(
            f"max_num_batched_tokens={asked} is less than max_model_len={longest}, and without chunked prefill a "
            f"prompt must fit into one step; raise it to {longest}, lower max_model_len, or allow chunked prefill"
        )
    return Decision(asked, "as asked")


def decide_in_parts(asked: bool, facts: ModelFacts, runner: str) -> Decision[bool]:
    """Whether a text may be computed in parts, chunks or cached prefixes.

    Where every token sees all others, or all are pooled, it is computed at once and whole.
    """
    kind = "last" if facts.pooling is None else facts.pooling.kind
    if runner == "pooling" and (facts.is_encoder or kind != "last"):
        return Decision(False, "off: a text is pooled from all of its tokens, computed in one step")
    return as_asked(asked)


def decide_max_steps_in_flight(config: EngineConfig) -> Decision[int]:
    """How many steps are planned before the first returns. Raises ConfigError."""
    if not config.scheduler.async_scheduling:
        return Decision(1, "each step is planned when the one before is done")
    backend = executor_backend(config)
    if MAX_STEPS_IN_FLIGHT[backend] < 2:
        raise ConfigError(
            f"async_scheduling=True cannot be had with distributed_executor_backend={backend}, which runs one step at "
            "a time; leave it out"
        )
    return Decision(2, "async_scheduling: the next step is planned while one runs")
