"""A step as arrays: which tokens, at which positions, in which cache slots, attending to what.

R requests own T tokens, request after request, in the order of ``SchedulerOutput.num_scheduled_tokens``. The arrays
are made once and written again at every step: a captured step knows them by their addresses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.device.attention.backend import AttentionBackend
from octavo.device.attention.context import ForwardContext, GivenRows
from octavo.device.attention.metadata import AttentionMetadata, CommonMetadata
from octavo.device.worker.block_table import BlockTable
from octavo.device.worker.kv_cache import LayerGroup
from octavo.device.worker.request_table import NO_SECOND_TEXT, RequestTable
from octavo.words.messages import SchedulerOutput

_ZERO = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class InputBatch:
    """One step's rows; what lies in the arrays of ``inputs`` is this step's until the next is prepared.

    slots, num_computed, seq_lens: [R] int64; slot in the table, and tokens computed before and after the step.
    second_text_at: [R] int64; where in a pair of texts the second begins.
    query_start_loc: [R + 1] int64; request r owns tokens query_start_loc[r] : query_start_loc[r + 1].
    sampled: [S] int64; the requests, by row, all of whose known tokens are computed by this step: only these get a
             token, the others are still inside their prompt.
    num_drafts: [S] int64; drafts that follow the known tokens of each of those.
    given: embeddings that stand in place of tokens, if any.
    num_drafts_to_guess: by request, the most drafts to guess after the step.
    """

    step_id: int
    request_ids: list[str]
    slots: npt.NDArray[np.int64]
    num_computed: npt.NDArray[np.int64]
    seq_lens: npt.NDArray[np.int64]
    query_start_loc: npt.NDArray[np.int64]
    second_text_at: npt.NDArray[np.int64]
    sampled: npt.NDArray[np.int64]
    num_drafts: npt.NDArray[np.int64]
    num_drafts_to_guess: Mapping[str, int]
    num_tokens: int
    inputs: StepInputs
    given: GivenRows | None = None

    @property
    def num_requests(self) -> int:
        return len(self.request_ids)

    @property
    def token_ids(self) -> Tensor:
        """[T] int64."""
        return self.inputs.token_ids[: self.num_tokens]

    @property
    def positions(self) -> Tensor:
        """[T] int64."""
        return self.inputs.positions[: self.num_tokens]

    @cached_property
    def context(self) -> ForwardContext:
        """What attention layers need; made where somebody asks, which a captured step does not."""
        metadata: dict[str, AttentionMetadata] = {}
        for group in self.inputs.groups:
            metadata |= group.metadata(self)
        return ForwardContext(
            metadata=metadata,
            num_tokens=self.num_tokens,
            query_start_loc=self.inputs.query_start_loc[: self.num_requests + 1],
            token_types=self._token_types(),
            given=self.given,
        )

    def _token_types(self) -> Tensor | None:
        """[T] int64, 1 for tokens of second texts; None where no request of the step has one."""
        if (self.second_text_at == NO_SECOND_TEXT).all():
            return None
        second_text_at = torch.from_numpy(self.second_text_at.repeat(np.diff(self.query_start_loc)))
        return (self.positions >= second_text_at).long()

    @property
    def sampled_token_rows(self) -> Tensor:
        """[S + drafts] int64: the rows whose hidden states give next tokens, of each sampled request the last ones."""
        ends, counts = self.query_start_loc[self.sampled + 1], self.num_drafts + 1
        return torch.from_numpy(np.arange(counts.sum()) + (ends - counts.cumsum()).repeat(counts))


class StepInputs:
    """The arrays of every step.

    token_ids, positions: [max_num_tokens] int64. query_start_loc: [max_num_requests + 1], seq_lens: [max_num_requests]
    int32.
    """

    def __init__(self, groups: Sequence[GroupInputs], max_num_requests: int, max_num_tokens: int) -> None:
        self.groups = tuple(groups)
        self.max_num_tokens = max_num_tokens
        self._token_ids = np.zeros(max_num_tokens, dtype=np.int64)
        self._positions = np.zeros(max_num_tokens, dtype=np.int64)
        self._query_start_loc = np.zeros(max_num_requests + 1, dtype=np.int32)
        self._seq_lens = np.zeros(max_num_requests, dtype=np.int32)
        self.token_ids = torch.from_numpy(self._token_ids)
        self.positions = torch.from_numpy(self._positions)
        self.query_start_loc = torch.from_numpy(self._query_start_loc)
        self.seq_lens = torch.from_numpy(self._seq_lens)

    @property
    def token_arrays(self) -> list[Tensor]:
        """Those with an entry per token."""
        return [self.token_ids, self.positions, *(group.slot_mapping for group in self.groups)]

    @property
    def request_arrays(self) -> list[Tensor]:
        """Those with an entry per request."""
        return [self.query_start_loc, self.seq_lens, *(group.block_table for group in self.groups)]

    def prepare(self, output: SchedulerOutput, table: RequestTable) -> InputBatch:
        """Write one decided step, of at least one token, into the arrays; nothing loops over tokens."""
        request_ids = list(output.num_scheduled_tokens)
        num_requests = len(request_ids)
        num_scheduled = np.fromiter(output.num_scheduled_tokens.values(), np.int64, num_requests)
        slots = table.slots(request_ids)
        num_computed = table.num_computed_tokens[slots]
        seq_lens = num_computed + num_scheduled
        query_start_loc = np.concatenate((_ZERO, num_scheduled.cumsum()))
        num_tokens = int(query_start_loc[-1])
        self._query_start_loc[: num_requests + 1] = query_start_loc
        self._seq_lens[:num_requests] = seq_lens
        slot_of_token, positions = slots, num_computed
        if num_tokens > num_requests:
            # Token t of request r is at position num_computed[r] + t - query_start_loc[r].
            slot_of_token = slots.repeat(num_scheduled)
            positions = np.arange(num_tokens) + (num_computed - query_start_loc[:-1]).repeat(num_scheduled)
        self._positions[:num_tokens] = positions
        self._token_ids[:num_tokens] = table.token_ids[slot_of_token, positions]
        max_seq_len = int(seq_lens.max())
        num_beyond = seq_lens - table.num_tokens[slots]
        sampled = (num_beyond >= 0).nonzero()[0]
        for group in self.groups:
            group.write(slots, slot_of_token, positions, max_seq_len)
        return InputBatch(
            step_id=output.step_id,
            request_ids=request_ids,
            slots=slots,
            num_computed=num_computed,
            seq_lens=seq_lens,
            query_start_loc=query_start_loc,
            second_text_at=table.second_text_at[slots],
            sampled=sampled,
            num_drafts=num_beyond[sampled],
            num_drafts_to_guess=output.num_drafts,
            num_tokens=num_tokens,
            inputs=self,
        )


class GroupInputs:
    """One KV group: its layers by the backend that builds their metadata, and its arrays of every step.

    block_table: [max_num_requests, max kernel blocks] int32, slot_mapping: [max_num_tokens] int64.
    """

    def __init__(
        self, group: LayerGroup, table: BlockTable, *, max_num_requests: int, max_num_tokens: int, max_model_len: int
    ) -> None:
        self._table = table
        self._spec = group.spec
        self._layer_names: dict[int, list[str]] = {}
        self._backends: dict[int, AttentionBackend] = {}
        for name, layer in group.layers.items():
            self._backends[id(layer.backend)] = layer.backend
            self._layer_names.setdefault(id(layer.backend), []).append(name)
        columns = table.max_kernel_blocks(max_model_len)
        self._block_table = np.zeros((max_num_requests, columns), dtype=np.int32)
        self._slot_mapping = np.zeros(max_num_tokens, dtype=np.int64)
        self.block_table = torch.from_numpy(self._block_table)
        self.slot_mapping = torch.from_numpy(self._slot_mapping)

    def write(
        self,
        slots: npt.NDArray[np.int64],
        slot_of_token: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        max_seq_len: int,
    ) -> None:
        """Write a step: the slots of its requests, and of its tokens with their positions."""
        blocks = self._table.kernel_blocks(slots, max_seq_len)
        self._num_columns = blocks.shape[1]
        self._block_table[: len(slots), : self._num_columns] = blocks
        self._slot_mapping[: len(positions)] = self._table.slot_mapping(slot_of_token, positions)

    def metadata(self, batch: InputBatch) -> dict[str, AttentionMetadata]:
        """The metadata of each layer of the group in the step that was written; layers of one backend share theirs."""
        inputs, num_requests = batch.inputs, batch.num_requests
        common = CommonMetadata(
            query_start_loc=inputs.query_start_loc[: num_requests + 1],
            seq_lens=inputs.seq_lens[:num_requests],
            block_table=self.block_table[:num_requests, : self._num_columns],
            slot_mapping=self.slot_mapping[: batch.num_tokens],
            query_start_loc_host=batch.query_start_loc,
            seq_lens_host=batch.seq_lens,
            block_size=self._table.kernel_block_size,
            max_query_len=int(np.diff(batch.query_start_loc).max()),
            max_seq_len=int(batch.seq_lens.max()),
        )
        metadata: dict[str, AttentionMetadata] = {}
        for key, backend in self._backends.items():
            metadata |= dict.fromkeys(self._layer_names[key], backend.build_metadata(common, self._spec))
        return metadata
