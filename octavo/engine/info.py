"""What a started engine core says about itself: sent in READY, never changed."""

from __future__ import annotations

import msgspec

from octavo.control.kv.capacity import longest_length_that_fits
from octavo.control.kv.planning import max_concurrency
from octavo.plan.plan import Plan
from octavo.words.graph_report import GraphReport
from octavo.words.kv_cache_spec import KVCacheConfig
from octavo.words.model_facts import ModelFacts


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The model, what was decided and what memory profiling taught.

    ``phases`` maps each phase of the start to its seconds, in order. ``incarnation`` numbers the core process: a
    core started in place of a dead one has the next number. ``graph`` says what came of capturing the forward pass;
    None where no model runs.
    """

    facts: ModelFacts
    plan: Plan
    kv_cache_config: KVCacheConfig
    phases: dict[str, float]
    graph: GraphReport | None = None
    incarnation: int = 0

    @property
    def max_model_len(self) -> int:
        """Longest prompt + output in tokens, after fitting."""
        return self.kv_cache_config.max_model_len

    @property
    def max_tokens_in_flight(self) -> int:
        """Most tokens of one request in the steps in flight."""
        return self.plan.max_num_batched_tokens * self.plan.max_steps_in_flight

    @property
    def max_tokens_that_fit(self) -> int:
        """Longest request the KV cache can hold; below ``max_model_len`` only where the number of blocks was forced."""
        return longest_length_that_fits(
            [group.spec for group in self.kv_cache_config.groups],
            self.kv_cache_config.num_usable_blocks,
            at_most=self.max_model_len,
            max_tokens_in_flight=self.max_tokens_in_flight,
        )

    @property
    def max_concurrency(self) -> float:
        """How many requests of ``max_model_len`` tokens the KV cache holds at once."""
        return max_concurrency(self.kv_cache_config, max_num_batched_tokens=self.max_tokens_in_flight)

    @property
    def num_kv_tokens(self) -> int:
        """Tokens the KV cache holds when it is full of requests of ``max_model_len`` tokens."""
        return int(self.max_concurrency * self.max_model_len) if self.kv_cache_config.groups else 0
