"""What became of drafts lately: how often there was a guess, and how far guesses were right."""

from __future__ import annotations


class DraftRecord:
    """A record of steps after which drafts were asked for; each weighs ``kept`` of itself after the next one.

    ``asked`` counts these steps, ``guessed`` those with a guess. By the place of a draft in its guess, ``tried`` counts
    drafts after right ones, and ``right`` the right ones among them: what follows a wrong draft says nothing.
    """

    def __init__(self, kept: float) -> None:
        self.asked = self.guessed = 0.0
        self.tried: list[float] = []
        self.right: list[float] = []
        self._kept = kept

    def add(self, num_drafts: int, num_right: int) -> None:
        """A step had a guess of so many drafts, maybe none, of which the first few were right."""
        kept = self._kept
        self.asked = kept * self.asked + 1.0
        self.guessed = kept * self.guessed + (num_drafts > 0)
        if not num_drafts:
            return
        lacking = [0.0] * (num_drafts - len(self.tried))
        self.tried = [kept * number for number in self.tried + lacking]
        self.right = [kept * number for number in self.right + lacking]
        for place in range(min(num_right + 1, num_drafts)):
            self.tried[place] += 1.0
            self.right[place] += place < num_right

    def share_guessed(self, expected: float, weight: float) -> float:
        """How likely there is a guess; what was ``expected`` counts as so many steps."""
        return (weight * expected + self.guessed) / (weight + self.asked)

    def share_right(self, place: int, expected: float, weight: float) -> float:
        """How likely the draft of a place is right after right ones; what was ``expected`` counts as above."""
        if place >= len(self.tried):
            return expected
        return (weight * expected + self.right[place]) / (weight + self.tried[place])
