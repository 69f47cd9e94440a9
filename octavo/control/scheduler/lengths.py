"""Requests that can never run, because they are too long for the context, a step or the whole cache."""

from __future__ import annotations

from octavo.control.kv.manager import KVCacheManager
from octavo.control.request import Request
from octavo.control.scheduler.limits import SchedulerLimits


class LengthRules:
    """``max_request_len``: most tokens of one request, prompt and output: what context and cache allow."""

    def __init__(self, limits: SchedulerLimits, kv_cache: KVCacheManager) -> None:
        self._limits = limits
        self._kv_cache = kv_cache
        self.max_request_len = self._longest_request()

    def _longest_request(self) -> int:
        max_model_len, num_lookahead = self._limits.max_model_len, self._limits.num_lookahead_tokens
        if self._kv_cache.can_ever_fit(max_model_len + num_lookahead):
            return max_model_len
        return min(max_model_len, self._kv_cache.max_tokens_that_fit - num_lookahead)

    def why_it_can_never_run(self, request: Request) -> str | None:
        """The reason, or None: it can run, if only alone."""
        num_tokens = request.num_tokens
        if num_tokens == 0:
            return "the prompt is empty: give at least one token."
        room = 0 if request.sampling.pooling is not None else 1
        if num_tokens + room > self._limits.max_model_len:
            return (
                f"the prompt has {num_tokens} tokens and the context length is {self._limits.max_model_len}: at most "
                f"{self._limits.max_model_len - 1} leave room for an answer. Shorten it or raise --max-model-len."
            )
        if num_tokens + room > self.max_request_len:
            return (
                f"the prompt has {num_tokens} tokens and with one token of output needs room for {num_tokens + 1}, but "
                f"the whole KV cache holds {self.max_request_len} tokens. Shorten it or enlarge the cache "
                f"(--kv-cache-memory-bytes)."
            )
        max_tokens_per_step = self._limits.max_num_batched_tokens
        if not self._limits.enable_chunked_prefill and request.num_prompt_tokens > max_tokens_per_step:
            return (
                f"the prompt has {request.num_prompt_tokens} tokens and a step takes {max_tokens_per_step}, with "
                f"chunked prefill off. Shorten it, raise --max-num-batched-tokens, or allow chunked prefill."
            )
        return None

    def outgrown(self, request: Request) -> str:
        """What to say of a request that is alone and finds no room."""
        return (
            f"the request has {request.num_tokens} tokens and outgrew the whole KV cache, which holds "
            f"{self._kv_cache.max_tokens_that_fit} tokens. Ask for fewer tokens or enlarge the cache "
            f"(--kv-cache-memory-bytes)."
        )
