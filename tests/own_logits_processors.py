"""Logits processors as users write them."""

from __future__ import annotations

from typing import Any, ClassVar

from octavo.device.sample.logits_processors import Followed, SamplingBatch
from octavo.words.messages import NewRequestData
from tests.succ import EOT

WRONG_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 99, "mood": true}}\n</tool_call>'


class OnlyToken:
    """Requests with the argument ``only_token`` say nothing else."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._tokens: Followed[int] = Followed()

    def add(self, slot: int, request: NewRequestData) -> None:
        token_id = (request.sampling.params.extra_args or {}).get("only_token")
        if token_id is None:
            return
        if not 0 <= token_id < self._vocab_size:
            raise ValueError(f"only_token must be below {self._vocab_size}, got {token_id}")
        self._tokens.add(slot, token_id)

    def remove(self, slot: int) -> None:
        self._tokens.remove(slot)

    def apply(self, logits: Any, batch: SamplingBatch) -> bool:
        rows = self._tokens.rows(batch)
        for row, token_id in rows:
            kept = logits[row, token_id].item()
            logits[row] = float("-inf")
            logits[row, token_id] = kept
        return bool(rows)


class NoTwins:
    """Answers to requests with the argument ``no_twins_of`` never say that token twice in a row."""

    def __init__(self, vocab_size: int) -> None:
        self._asked: Followed[tuple[int, int]] = Followed()

    def add(self, slot: int, request: NewRequestData) -> None:
        token_id = (request.sampling.params.extra_args or {}).get("no_twins_of")
        if token_id is not None:
            self._asked.add(slot, (token_id, len(request.prompt_token_ids)))

    def remove(self, slot: int) -> None:
        self._asked.remove(slot)

    def apply(self, logits: Any, batch: SamplingBatch) -> bool:
        has_changed = False
        for row, (token_id, start) in self._asked.rows(batch):
            if batch.tokens(row, start)[-1:].tolist() == [token_id]:
                logits[row, token_id] = float("-inf")
                has_changed = True
        return has_changed


class RawLogits:
    """Keeps the bytes of the logits of requests with the argument ``watched``, by its value and the position."""

    seen: ClassVar[dict[tuple[str, int], bytes]] = {}
    most_rows: ClassVar[int] = 0

    def __init__(self, vocab_size: int) -> None:
        self._names: Followed[str] = Followed()

    def add(self, slot: int, request: NewRequestData) -> None:
        name = (request.sampling.params.extra_args or {}).get("watched")
        if name is not None:
            self._names.add(slot, name)

    def remove(self, slot: int) -> None:
        self._names.remove(slot)

    def apply(self, logits: Any, batch: SamplingBatch) -> bool:
        RawLogits.most_rows = max(RawLogits.most_rows, len(batch.slots))
        for row, name in self._names.rows(batch):
            self.seen[name, int(batch.num_tokens[row])] = logits[row].numpy().tobytes()
        return False


class WantsWrongCall:
    """Every answer, of one byte a token, would be ``WRONG_CALL``, and end after any call."""

    def __init__(self, vocab_size: int) -> None:
        self._starts: Followed[int] = Followed()

    def add(self, slot: int, request: NewRequestData) -> None:
        self._starts.add(slot, len(request.prompt_token_ids))

    def remove(self, slot: int) -> None:
        self._starts.remove(slot)

    def apply(self, logits: Any, batch: SamplingBatch) -> bool:
        call = list(WRONG_CALL.encode())
        end = list(b"</tool_call>")
        for row, start in self._starts.rows(batch):
            said = batch.tokens(row, start).tolist()
            is_over = len(said) >= len(call) or said[-len(end) :] == end
            logits[row, EOT if is_over else call[len(said)]] += 100.0
        return False


class Broken:
    """It fails as soon as it has work."""

    def __init__(self, vocab_size: int) -> None:
        pass

    def add(self, slot: int, request: NewRequestData) -> None:
        pass

    def remove(self, slot: int) -> None:
        pass

    def apply(self, logits: Any, batch: SamplingBatch) -> bool:
        raise RuntimeError("out of order")


class SaysNothing(Broken):
    """It forgets to say whether it changed anything."""

    def apply(self, logits: Any, batch: SamplingBatch) -> bool:
        return None  # type: ignore[return-value]


class NoProcessor:
    """Cannot apply anything."""

    def __init__(self, vocab_size: int) -> None:
        pass
