"""The end of a step for requests that want numbers: hidden states are pooled, and no token is chosen."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo.device.sample.pooling import pool
from octavo.device.worker.decode_loop import DecodeLoop, NoDecodeLoop
from octavo.device.worker.input_batch import InputBatch
from octavo.device.worker.request_table import RequestTable
from octavo.words.messages import GrammarMasks, ModelRunnerOutput, NewRequestData
from octavo.words.model_facts import PoolingFacts
from octavo.words.pooling_params import PoolingParams

LAST_TOKEN = PoolingFacts(kind="last", normalize=True)
"""How a causal language model that does not say otherwise makes a vector."""


class PoolingHead:
    """Pools each request whose tokens are all computed; keeps what was asked by slot of the request table."""

    def __init__(self, model: nn.Module, pooling: PoolingFacts | None, *, num_labels: int) -> None:
        self.loop: DecodeLoop = NoDecodeLoop()
        self._pooling = pooling or LAST_TOKEN
        self._classifier = model if num_labels else None
        self._params: dict[int, PoolingParams] = {}

    def add(self, slot: int, request: NewRequestData) -> None:
        self._params[slot] = request.sampling.pooling or PoolingParams()

    def remove(self, slot: int) -> None:
        self._params.pop(slot, None)

    def finish(
        self, hidden: Tensor, batch: InputBatch, table: RequestTable, grammar_masks: GrammarMasks | None
    ) -> ModelRunnerOutput:
        pooled: dict[str, bytes] = {}
        failed: dict[str, str] = {}
        for row in batch.sampled.tolist():
            start, end = batch.query_start_loc[row : row + 2].tolist()
            params = self._params[int(batch.slots[row])]
            numbers = pool(hidden[start:end], params, self._pooling, self._classifier)
            if torch.isfinite(numbers).all():
                pooled[batch.request_ids[row]] = numbers.numpy().tobytes()
            else:
                failed[batch.request_ids[row]] = "the model's hidden states hold NaN or infinity"
        return ModelRunnerOutput(
            step_id=batch.step_id,
            request_ids=batch.request_ids,
            sampled_token_ids=[[] for _ in batch.request_ids],
            pooled=pooled,
            failed=failed,
        )

    def look_back(self, batch: InputBatch, table: RequestTable, output: ModelRunnerOutput) -> None:
        pass

    def counters(self) -> dict[str, int]:
        return {}
