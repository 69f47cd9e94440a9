"""The bounds that every step keeps."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.control.scheduler.queues import QUEUES
from octavo.words.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class SchedulerLimits:
    """The bounds of every step; raises ConfigError for values no step could meet.

    ``max_num_batched_tokens`` is the token budget of a step, ``max_num_seqs`` the most requests running at once.
    ``watermark`` is the share of blocks that must stay free when a request joins running ones.
    ``num_lookahead_tokens`` are slots that a drafter fills beyond the tokens of a step. Prompt tokens beside decodes
    are so many that a step takes ``max_step_seconds`` (0 = however long); without chunked prefill this says nothing.
    Decode steps are run at once for ``max_burst_seconds`` (0 = never) while somebody reads along.
    ``num_draft_tokens`` are the most drafts of a request in a step (0: nobody drafts), ``drafts_one_by_one`` says that
    each costs the drafter a step of its own, ``drafter_catches_up`` that it has to read what was said while it was not
    asked, ``drafter_looks_back`` that it can tell what it would have guessed. ``adapt_drafts`` leaves out drafts that
    cost more time than they save.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: str = "fcfs"
    watermark: float = 0.0
    num_lookahead_tokens: int = 0
    max_steps_in_flight: int = 1
    max_step_seconds: float = 0.0
    max_burst_seconds: float = 0.0
    num_draft_tokens: int = 0
    drafts_one_by_one: bool = False
    drafter_catches_up: bool = False
    drafter_looks_back: bool = False
    adapt_drafts: bool = False

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "max_steps_in_flight"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")
        for name in (
            "long_prefill_token_threshold",
            "num_lookahead_tokens",
            "num_draft_tokens",
            "max_step_seconds",
            "max_burst_seconds",
        ):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be at least 0, got {getattr(self, name)}.")
        if not 0.0 <= self.watermark < 1.0:
            raise ConfigError(f"watermark must be at least 0 and below 1, got {self.watermark}.")
        if self.policy not in QUEUES:
            raise ConfigError(f"scheduling_policy must be one of {', '.join(QUEUES)}, got {self.policy!r}.")
