"""Embeddings that users gave in place of tokens, by slot of the request table."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.device.attention.context import GivenRows
from octavo.device.worker.input_batch import InputBatch
from octavo.words.messages import NewRequestData


class PromptEmbeds:
    """Keeps each request's embeddings [prompt tokens, hidden_size]; none, mostly, and then it costs nothing."""

    def __init__(self) -> None:
        self._given: dict[int, Tensor] = {}

    def add(self, slot: int, request: NewRequestData) -> None:
        if request.prompt_embeds:
            rows = torch.frombuffer(bytearray(request.prompt_embeds), dtype=torch.float32)
            self._given[slot] = rows.view(len(request.prompt_token_ids), -1)

    def remove(self, slot: int) -> None:
        self._given.pop(slot, None)

    def of_step(self, batch: InputBatch) -> GivenRows | None:
        """Those of a step's tokens; None where all tokens are tokens."""
        rows, values = [], []
        for row, slot in enumerate(batch.slots.tolist()) if self._given else ():
            given = self._given.get(slot)
            start = int(batch.num_computed[row])
            if given is None or start >= len(given):
                continue
            chunk = given[start : int(batch.seq_lens[row])]
            first = int(batch.query_start_loc[row])
            rows.append(torch.arange(first, first + len(chunk)))
            values.append(chunk)
        return GivenRows(torch.cat(rows), torch.cat(values)) if rows else None
