"""Steps laid out in one native call are those of the reference, number by number."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.device.worker.block_table import BlockTable, BlockTables
from octavo.device.worker.request_table import RequestTable
from octavo.device.worker.step_layout import GroupArrays, NativeLayout, NumpyLayout, StepArrays, StepCounts
from octavo.words.messages import CachedRequestData, NewRequestData, ResolvedSampling, SchedulerOutput
from octavo.words.sampling_params import SamplingParams

_native = pytest.importorskip("octavo._native")
REQUESTS, TOKENS, LENGTH = 6, 700, 600
KERNEL_SIZES = ((16, 16), (32, 16), (12, 4))
"""Block and kernel block size of each group."""


def request(name: str, rng: np.random.Generator, num_tokens: int, num_computed: int) -> NewRequestData:
    return NewRequestData(
        request_id=name,
        prompt_token_ids=rng.integers(1000, size=num_tokens).tolist(),
        output_token_ids=[],
        sampling=ResolvedSampling(params=SamplingParams(), seed=0, max_tokens=1, num_text_tokens=1000),
        block_ids=tuple(rng.integers(1, 90, size=-(-LENGTH // size)).tolist() for size, _ in KERNEL_SIZES),
        num_computed_tokens=num_computed,
    )


class Both:
    """A table of requests, and two sets of arrays that its steps are written to."""

    def __init__(self) -> None:
        self.blocks = [BlockTable(REQUESTS, *sizes) for sizes in KERNEL_SIZES]
        self.table = RequestTable(REQUESTS, BlockTables(self.blocks))
        self.arrays = [StepArrays(REQUESTS, TOKENS) for _ in range(2)]
        self.groups = [[self._group(table) for table in self.blocks] for _ in range(2)]
        self.layouts = (
            NumpyLayout(self.arrays[0], self.groups[0]),
            NativeLayout(_native, self.arrays[1], self.groups[1]),
        )

    @staticmethod
    def _group(table: BlockTable) -> GroupArrays:
        return GroupArrays(table, max_num_requests=REQUESTS, max_num_tokens=TOKENS, max_model_len=LENGTH)

    def write(self, num_scheduled: dict[str, int]) -> StepCounts:
        """Lay a step out both ways; what is left of older steps in the arrays must be the same too."""
        slots, counts = self.table.slots(num_scheduled), list(num_scheduled.values())
        expected, found = [layout.write(self.table, slots, counts) for layout in self.layouts]
        assert found == expected
        for name, array in vars(self.arrays[0]).items():
            assert array.tolist() == getattr(self.arrays[1], name).tolist(), name
        for one, other in zip(*self.groups, strict=True):
            assert one.block_table.tolist() == other.block_table.tolist()
            assert one.slot_mapping.tolist() == other.slot_mapping.tolist()
        return found


def test_prompts_chunks_decodes_and_drafts_share_a_step() -> None:
    rng, both = np.random.default_rng(0), Both()
    step = SchedulerOutput(
        step_id=1,
        new_requests=[
            request("decode", rng, 33, 32),
            request("whole", rng, 100, 0),
            request("chunk", rng, 300, 128),
            request("verify", rng, 20, 19),
        ],
        draft_token_ids={"verify": [7, 8, 9]},
    )
    both.table.update(step)
    found = both.write({"verify": 4, "whole": 100, "decode": 1, "chunk": 90})
    assert found == StepCounts(num_tokens=195, max_seq_len=218, num_sampled=3, num_logit_rows=6)
    arrays = both.arrays[1]
    assert arrays.logit_rows[:6].tolist() == [0, 1, 2, 3, 103, 104]
    assert arrays.logit_positions[:6].tolist() == [20, 21, 22, 23, 100, 33]
    assert arrays.logit_drafts[:6].tolist() == [0, 1, 2, 3, 0, 0]
    assert arrays.token_ids[1:4].tolist() == [7, 8, 9]


def test_tables_that_grow_between_steps_are_found_again() -> None:
    rng, both = np.random.default_rng(1), Both()
    both.table.update(SchedulerOutput(step_id=1, new_requests=[request("short", rng, 3, 0)]))
    both.write({"short": 3})
    both.table.append(both.table.slots(["short"]), [[5]])
    long = request("long", rng, 590, 0)
    decode = CachedRequestData(request_id="short", new_block_ids=([], [], []), num_computed_tokens=3)
    both.table.update(SchedulerOutput(step_id=2, new_requests=[long], cached_requests=[decode]))
    assert both.write({"short": 1, "long": 590}).num_tokens == 591


def test_a_step_inside_a_prompt_samples_nothing() -> None:
    rng, both = np.random.default_rng(2), Both()
    both.table.update(SchedulerOutput(step_id=1, new_requests=[request("a", rng, 9, 0)]))
    assert both.write({"a": 8}) == StepCounts(num_tokens=8, max_seq_len=8, num_sampled=0, num_logit_rows=0)
