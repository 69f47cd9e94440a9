"""A step as arrays: which tokens, at which positions, in which cache slots, attending to what.

R requests own T tokens, request after request, in the order of ``SchedulerOutput.num_scheduled_tokens``. The arrays
are made once and written again at every step: a captured step knows them by their addresses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType
from typing import TypeAlias

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
from octavo.device.worker.step_layout import GroupArrays, NativeLayout, NumpyLayout, StepArrays, StepCounts, StepLayout
from octavo.words.messages import SchedulerOutput

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class InputBatch:
    """One step's rows. Arrays are views of those of ``inputs``: they are this step's until the next is prepared.

    given: embeddings that stand in place of tokens, if any.
    num_drafts_to_guess: by request, the most drafts to guess after the step; num_trial_drafts: to judge in hindsight.
    """

    step_id: int
    request_ids: list[str]
    slot_list: list[int]
    counts: StepCounts
    num_drafts_to_guess: Mapping[str, int]
    num_trial_drafts: Mapping[str, int]
    inputs: StepInputs
    given: GivenRows | None = None

    @property
    def num_requests(self) -> int:
        return len(self.request_ids)

    @property
    def num_tokens(self) -> int:
        return self.counts.num_tokens

    @property
    def slots(self) -> Ints:
        """[R]: slots in the request table; ``slot_list`` holds the same numbers."""
        return self.inputs.arrays.slots[: len(self.request_ids)]

    @property
    def num_computed(self) -> Ints:
        """[R]: tokens computed before the step."""
        return self.inputs.arrays.num_computed[: len(self.request_ids)]

    @property
    def seq_lens(self) -> npt.NDArray[np.int32]:
        """[R]: tokens computed after the step."""
        return self.inputs.arrays.seq_lens[: len(self.request_ids)]

    @property
    def query_start_loc(self) -> npt.NDArray[np.int32]:
        """[R + 1]: request r owns tokens query_start_loc[r] : query_start_loc[r + 1]."""
        return self.inputs.arrays.query_start_loc[: len(self.request_ids) + 1]

    @property
    def sampled(self) -> Ints:
        """[S]: the requests, by row, all of whose known tokens are computed by this step.

        Only these get a token, the others are still inside their prompt.
        """
        return self.inputs.arrays.sampled[: self.counts.num_sampled]

    @property
    def num_drafts(self) -> Ints:
        """[S]: drafts that follow the known tokens of each of those."""
        return self.inputs.arrays.num_drafts[: self.counts.num_sampled]

    @property
    def sampled_token_rows(self) -> Ints:
        """[S + drafts]: the rows whose hidden states give next tokens, of each sampled request the last ones."""
        return self.inputs.arrays.logit_rows[: self.counts.num_logit_rows]

    @property
    def logit_slots(self) -> Ints:
        """[S + drafts]: whose those rows are."""
        return self.inputs.arrays.logit_slots[: self.counts.num_logit_rows]

    @property
    def logit_positions(self) -> Ints:
        """[S + drafts]: the position of the token that each gives."""
        return self.inputs.arrays.logit_positions[: self.counts.num_logit_rows]

    @property
    def logit_drafts(self) -> Ints:
        """[S + drafts]: how many of the tokens before that are drafts."""
        return self.inputs.arrays.logit_drafts[: self.counts.num_logit_rows]

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """What a model is called with before its context: token ids, positions, and features [T, H] if it takes any."""
        features = self.inputs.features
        return (self.token_ids, self.positions, *(() if features is None else (features[: self.num_tokens],)))

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
            token_types=self.inputs.token_types[: self.num_tokens],
            given=self.given,
        )


class StepInputs:
    """The arrays of every step as tensors, and what writes them.

    token_ids, positions, token_types (1 for tokens of the second of two texts): [max_num_tokens] int64.
    query_start_loc: [max_num_requests + 1], seq_lens: [max_num_requests] int32. ``library`` is the native one, if steps
    are to be laid out by it. features: [max_num_tokens, H], hidden states of another model, which the caller writes.
    """

    def __init__(
        self,
        groups: Sequence[GroupInputs],
        max_num_requests: int,
        max_num_tokens: int,
        *,
        library: ModuleType | None = None,
        features: Tensor | None = None,
    ) -> None:
        self.features = features
        self.groups = tuple(groups)
        self.max_num_tokens = max_num_tokens
        self.arrays = StepArrays(max_num_requests, max_num_tokens)
        of_groups = [group.arrays for group in groups]
        self.layout: StepLayout = (
            NumpyLayout(self.arrays, of_groups) if library is None else NativeLayout(library, self.arrays, of_groups)
        )
        self.token_ids = torch.from_numpy(self.arrays.token_ids)
        self.positions = torch.from_numpy(self.arrays.positions)
        self.token_types = torch.zeros(max_num_tokens, dtype=torch.int64)
        self.query_start_loc = torch.from_numpy(self.arrays.query_start_loc)
        self.seq_lens = torch.from_numpy(self.arrays.seq_lens)

    @property
    def token_arrays(self) -> list[Tensor]:
        """Those with an entry per token."""
        features = () if self.features is None else (self.features,)
        slots = (group.slot_mapping for group in self.groups)
        return [self.token_ids, self.positions, self.token_types, *features, *slots]

    @property
    def request_arrays(self) -> list[Tensor]:
        """Those with an entry per request."""
        return [self.query_start_loc, self.seq_lens, *(group.block_table for group in self.groups)]

    def prepare(self, output: SchedulerOutput, table: RequestTable) -> InputBatch:
        """Write one decided step, of at least one token, into the arrays."""
        request_ids = list(output.num_scheduled_tokens)
        slots = table.slots(request_ids)
        counts = self.layout.write(table, slots, list(output.num_scheduled_tokens.values()))
        if not self.groups:  # Encoders: they keep no keys and values, and nobody else reads types.
            self._write_token_types(table.second_text_at[slots], counts.num_tokens)
        return InputBatch(
            step_id=output.step_id,
            request_ids=request_ids,
            slot_list=slots,
            counts=counts,
            num_drafts_to_guess=output.num_drafts,
            num_trial_drafts=output.num_trial_drafts,
            inputs=self,
        )

    def prepare_next(self, batch: InputBatch, table: RequestTable) -> InputBatch:
        """Write the step after one of single tokens, whose requests all have their next token."""
        table.num_computed_tokens[batch.slot_list] += 1
        counts = self.layout.write(table, batch.slot_list, [1] * batch.num_requests)
        return replace(batch, counts=counts)

    def _write_token_types(self, second_text_at: Ints, num_tokens: int) -> None:
        types = self.token_types.numpy()[:num_tokens]
        if (second_text_at == NO_SECOND_TEXT).all():
            types[:] = 0
        else:
            num_scheduled = np.diff(self.arrays.query_start_loc[: len(second_text_at) + 1])
            types[:] = self.arrays.positions[:num_tokens] >= second_text_at.repeat(num_scheduled)


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
        self.arrays = GroupArrays(
            table, max_num_requests=max_num_requests, max_num_tokens=max_num_tokens, max_model_len=max_model_len
        )
        self.block_table = torch.from_numpy(self.arrays.block_table)
        self.slot_mapping = torch.from_numpy(self.arrays.slot_mapping)

    def metadata(self, batch: InputBatch) -> dict[str, AttentionMetadata]:
        """The metadata of each layer of the group in the step that was written; layers of one backend share theirs."""
        inputs, num_requests = batch.inputs, batch.num_requests
        num_columns = self._table.max_kernel_blocks(batch.counts.max_seq_len)
        common = CommonMetadata(
            query_start_loc=inputs.query_start_loc[: num_requests + 1],
            seq_lens=inputs.seq_lens[:num_requests],
            block_table=self.block_table[:num_requests, :num_columns],
            slot_mapping=self.slot_mapping[: batch.num_tokens],
            query_start_loc_host=batch.query_start_loc,
            seq_lens_host=batch.seq_lens,
            block_size=self._table.kernel_block_size,
            max_query_len=int(np.diff(batch.query_start_loc).max()),
            max_seq_len=batch.counts.max_seq_len,
        )
        metadata: dict[str, AttentionMetadata] = {}
        for key, backend in self._backends.items():
            metadata |= dict.fromkeys(self._layer_names[key], backend.build_metadata(common, self._spec))
        return metadata
