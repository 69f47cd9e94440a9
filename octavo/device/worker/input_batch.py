"""A step as tensors: which tokens, at which positions, in which cache slots, attending to what.

R requests own T tokens, request after request, in the order of ``SchedulerOutput.num_scheduled_tokens``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.device.attention.backend import AttentionBackend
from octavo.device.attention.context import ForwardContext
from octavo.device.attention.metadata import AttentionMetadata, CommonMetadata
from octavo.device.worker.block_table import BlockTable
from octavo.device.worker.kv_cache import LayerGroup
from octavo.device.worker.request_table import NO_SECOND_TEXT, RequestTable
from octavo.words.messages import SchedulerOutput


@dataclass(frozen=True, kw_only=True)
class InputBatch:
    """One step's rows.

    slots, num_computed, seq_lens: [R] int64; slot in the table, and tokens computed before and after the step.
    query_start_loc: [R + 1] int64; request r owns tokens query_start_loc[r] : query_start_loc[r + 1].
    token_ids, positions: [T] int64 tensors.
    sampled: [S] int64; the requests, by row, all of whose known tokens are computed by this step: only these get a
             token, the others are still inside their prompt.
    """

    step_id: int
    request_ids: list[str]
    slots: npt.NDArray[np.int64]
    num_computed: npt.NDArray[np.int64]
    seq_lens: npt.NDArray[np.int64]
    query_start_loc: npt.NDArray[np.int64]
    token_ids: Tensor
    positions: Tensor
    sampled: npt.NDArray[np.int64]
    context: ForwardContext

    @property
    def sampled_token_rows(self) -> Tensor:
        """[S] int64: the last token row of each sampled request, whose hidden state gives its next token."""
        return torch.from_numpy(self.query_start_loc[self.sampled + 1] - 1)


class GroupInputs:
    """One KV group: its block table, and its layers by the backend that builds their metadata."""

    def __init__(self, group: LayerGroup, block_table: BlockTable) -> None:
        self.block_table = block_table
        self._spec = group.spec
        self._layer_names: dict[int, list[str]] = {}
        self._backends: dict[int, AttentionBackend] = {}
        for name, layer in group.layers.items():
            self._backends[id(layer.backend)] = layer.backend
            self._layer_names.setdefault(id(layer.backend), []).append(name)

    def metadata(self, rows: _Rows) -> dict[str, AttentionMetadata]:
        """The metadata of each layer of the group; layers of one backend share theirs."""
        table = self.block_table
        common = CommonMetadata(
            query_start_loc=rows.query_start_loc_tensor,
            seq_lens=rows.seq_lens_tensor,
            block_table=torch.from_numpy(table.kernel_blocks(rows.slots, rows.max_seq_len)),
            slot_mapping=torch.from_numpy(table.slot_mapping(rows.slots[rows.request_of_token], rows.positions)),
            query_start_loc_host=rows.query_start_loc,
            seq_lens_host=rows.seq_lens,
            block_size=table.kernel_block_size,
            max_query_len=int(rows.num_scheduled.max()),
            max_seq_len=rows.max_seq_len,
        )
        metadata: dict[str, AttentionMetadata] = {}
        for key, backend in self._backends.items():
            metadata |= dict.fromkeys(self._layer_names[key], backend.build_metadata(common, self._spec))
        return metadata


class _Rows:
    """The arithmetic of a step, in numpy; nothing loops over tokens."""

    def __init__(self, table: RequestTable, slots: npt.NDArray[np.int64], num_scheduled: npt.NDArray[np.int64]) -> None:
        self.slots = slots
        self.num_scheduled = num_scheduled
        self.num_computed = table.num_computed_tokens[slots]
        self.seq_lens = self.num_computed + num_scheduled
        self.max_seq_len = int(self.seq_lens.max())
        self.query_start_loc = np.zeros(len(slots) + 1, dtype=np.int64)
        np.cumsum(num_scheduled, out=self.query_start_loc[1:])
        self.request_of_token = np.repeat(np.arange(len(slots)), num_scheduled)
        # Token t of request r is at position num_computed[r] + t - query_start_loc[r].
        shift = self.num_computed - self.query_start_loc[:-1]
        self.positions = np.arange(self.query_start_loc[-1]) + shift[self.request_of_token]
        self.token_ids = table.token_ids[slots[self.request_of_token], self.positions]
        self.sampled = np.flatnonzero(self.seq_lens >= table.num_tokens[slots])
        self.query_start_loc_tensor = torch.from_numpy(self.query_start_loc.astype(np.int32))
        self.seq_lens_tensor = torch.from_numpy(self.seq_lens.astype(np.int32))


def prepare_inputs(output: SchedulerOutput, table: RequestTable, groups: Sequence[GroupInputs]) -> InputBatch:
    """Turn one decided step with at least one token into tensors."""
    request_ids = list(output.num_scheduled_tokens)
    num_scheduled = np.fromiter(output.num_scheduled_tokens.values(), np.int64, len(request_ids))
    rows = _Rows(table, table.slots(request_ids), num_scheduled)
    metadata: dict[str, AttentionMetadata] = {}
    for group in groups:
        metadata |= group.metadata(rows)
    return InputBatch(
        step_id=output.step_id,
        request_ids=request_ids,
        slots=rows.slots,
        num_computed=rows.num_computed,
        seq_lens=rows.seq_lens,
        query_start_loc=rows.query_start_loc,
        token_ids=torch.from_numpy(rows.token_ids.astype(np.int64)),
        positions=torch.from_numpy(rows.positions),
        sampled=rows.sampled,
        context=ForwardContext(
            metadata=metadata,
            num_tokens=len(rows.positions),
            query_start_loc=rows.query_start_loc_tensor,
            token_types=_token_types(table, rows),
        ),
    )


def _token_types(table: RequestTable, rows: _Rows) -> Tensor | None:
    """[T] int64, 1 for tokens of second texts; None where no request of the step has one."""
    second_at = table.second_text_at[rows.slots]
    if (second_at == NO_SECOND_TEXT).all():
        return None
    return torch.from_numpy((rows.positions >= second_at[rows.request_of_token]).astype(np.int64))
