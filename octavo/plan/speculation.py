"""Who drafts, how many tokens, and the Plan of a drafter with weights of its own."""

from __future__ import annotations

import msgspec

from octavo.config.engine_config import EngineConfig
from octavo.config.speculation import SpeculationConfig
from octavo.plan.decision import Decision
from octavo.plan.executor import executor_backend
from octavo.plan.kernels import decide_attention_backend
from octavo.plan.plan import Plan
from octavo.plan.weights import quantization_of, weight_bytes_of
from octavo.words.drafter_facts import DrafterFacts
from octavo.words.errors import ConfigError
from octavo.words.model_facts import ModelFacts

DRAFTERS_WITH_CACHE = ("draft_model", "eagle")


def decide_speculative_method(config: EngineConfig, runner: str) -> Decision[str]:
    """Who drafts, if anybody does. Raises ConfigError."""
    asked = config.speculation
    check_speculative_model(asked)
    if asked.speculative_method == "none":
        return Decision("none", "default: each step brings a token")
    method = f"speculative_method={asked.speculative_method}"
    if executor_backend(config) == "simulated":
        raise ConfigError(f"{method} cannot be had with a simulated model, which drafts nothing; drop it")
    if runner != "generate":
        raise ConfigError(f"{method} cannot be had with a pooling model, which says no tokens; drop it")
    if asked.speculative_method != "ngram":
        return Decision(asked.speculative_method, f"as asked: {asked.speculative_model} drafts")
    if asked.prompt_lookup_min > asked.prompt_lookup_max:
        raise ConfigError(
            f"prompt_lookup_min={asked.prompt_lookup_min} is above prompt_lookup_max={asked.prompt_lookup_max}: lower "
            "it, or raise the other"
        )
    lengths = f"{asked.prompt_lookup_min} to {asked.prompt_lookup_max}"
    return Decision(asked.speculative_method, f"as asked: drafts follow {lengths} tokens that were said before")


def check_speculative_model(asked: SpeculationConfig) -> None:
    """Raise ConfigError where a method has no model that it needs, or a model no method that it is for."""
    method, model = asked.speculative_method, asked.speculative_model
    if method in ("none", "ngram") and model is not None:
        raise ConfigError(
            f"speculative_model={model} drafts nothing with speculative_method={method}: say draft_model, or drop it"
        )
    if method not in ("none", "ngram") and model is None:
        raise ConfigError(f"speculative_method={method} needs a speculative_model: name one, or take ngram")


def decide_num_speculative_tokens(config: EngineConfig, method: str, drafter: DrafterFacts | None) -> Decision[int]:
    """The most drafts of a request in a step: no more than the drafter has heads."""
    if method == "none":
        return Decision(0, "nothing is drafted")
    asked = config.speculation.num_speculative_tokens
    if drafter is not None and 0 < drafter.num_heads < asked:
        return Decision(drafter.num_heads, "a token for each of its heads")
    return Decision(config.speculation.num_speculative_tokens, "as asked, or the default")


def decide_num_lookahead_tokens(config: EngineConfig, method: str) -> Decision[int]:
    """Slots that a drafter's keys and values need behind a step's tokens."""
    if method not in DRAFTERS_WITH_CACHE:
        return Decision(0, "no drafter has keys and values")
    return Decision(config.speculation.num_speculative_tokens, "a place for the keys and values of each draft")


def plan_drafter(config: EngineConfig, plan: Plan, model: ModelFacts, drafter: DrafterFacts) -> Plan:
    """The Plan of a model for its drafter: what differs is how weights are held, and who computes attention."""
    return msgspec.structs.replace(
        plan,
        quantization=_drafter_format(config, drafter, plan.kernels),
        attention_backend=decide_attention_backend(plan.kernels, drafter.network, plan.block_size).value,
        max_model_len=plan.max_model_len or model.max_position,
    )


def decide_drafter_bytes(config: EngineConfig, drafter: DrafterFacts | None, dtype: str, kernels: str) -> Decision[int]:
    """What the drafter's weights take."""
    if drafter is None:
        return Decision(0, "no drafter has weights")
    form = _drafter_format(config, drafter, kernels)
    return Decision(weight_bytes_of(drafter.network, dtype, form), "its share of weight_bytes")


def _drafter_format(config: EngineConfig, drafter: DrafterFacts, kernels: str) -> str:
    """How its weights are held: as was asked for the model's, where its files allow that."""
    if config.model.quantization == "gguf" and drafter.network.weight_format != "gguf":
        return "none"
    return quantization_of(config, drafter.network, kernels)[0]
