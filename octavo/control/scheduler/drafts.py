"""What became of drafts."""

from __future__ import annotations


class DraftCounts:
    """Totals since start: steps of requests that verified drafts, the drafts, and those that were right."""

    def __init__(self) -> None:
        self.num_drafts = self.num_draft_tokens = self.num_accepted_tokens = 0

    def observe(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """A step verified so many drafts of a request."""
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
