from __future__ import annotations

from octavo.device.layers.attention import attention_layers
from octavo.device.worker.block_table import BlockTable, BlockTables
from octavo.device.worker.input_batch import GroupInputs, InputBatch, StepInputs
from octavo.device.worker.kv_cache import layer_groups
from octavo.device.worker.request_table import RequestTable
from octavo.words.messages import CachedRequestData, NewRequestData, ResolvedSampling, SchedulerOutput
from octavo.words.sampling_params import SamplingParams
from tests.device.worker.tiny_model import TinyModel, kv_config


def new_request(request_id: str, prompt: list[int], blocks: tuple[list[int], ...], computed: int = 0) -> NewRequestData:
    return NewRequestData(
        request_id=request_id,
        prompt_token_ids=prompt,
        output_token_ids=[],
        sampling=ResolvedSampling(params=SamplingParams(), seed=0, max_tokens=1, num_text_tokens=40),
        block_ids=blocks,
        num_computed_tokens=computed,
    )


def prepared() -> InputBatch:
    """Three requests: a decode, a prompt that begins after a prefix hit, and a chunk of a longer prompt."""
    config = kv_config(block_size=4)
    groups = layer_groups(config, attention_layers(TinyModel()))
    tables = [BlockTable(4, 4, 4) for _ in groups]
    table = RequestTable(4, BlockTables(tables))
    sizes = {"max_num_requests": 4, "max_num_tokens": 16}
    inputs = StepInputs(
        [GroupInputs(group, one, max_model_len=16, **sizes) for group, one in zip(groups, tables, strict=True)], **sizes
    )
    old = new_request("old", [10, 11, 12, 13], ([3], [4]))
    table.update(SchedulerOutput(step_id=0, new_requests=[old], num_scheduled_tokens={"old": 4}))
    table.append(table.slots(["old"]), [[14]])
    output = SchedulerOutput(
        step_id=1,
        new_requests=[
            new_request("hit", [20, 21, 22, 23, 24, 25], ([5, 6], [0, 8]), computed=4),
            new_request("chunk", [30, 31, 32, 33], ([9], [10])),
        ],
        cached_requests=[CachedRequestData(request_id="old", new_block_ids=([7], [2]), num_computed_tokens=4)],
        num_scheduled_tokens={"chunk": 3, "old": 1, "hit": 2},
    )
    table.update(output)
    return inputs.prepare(output, table)


def test_rows_are_in_the_schedulers_order_with_their_positions() -> None:
    batch = prepared()
    assert batch.request_ids == ["chunk", "old", "hit"]
    assert batch.token_ids.tolist() == [30, 31, 32, 14, 24, 25]
    assert batch.positions.tolist() == [0, 1, 2, 4, 4, 5]
    assert batch.query_start_loc.tolist() == [0, 3, 4, 6]
    assert batch.seq_lens.tolist() == [3, 5, 6]


def test_only_requests_whose_known_tokens_are_all_computed_are_sampled() -> None:
    batch = prepared()
    assert batch.sampled.tolist() == [1, 2]
    assert batch.sampled_token_rows.tolist() == [3, 5]


def test_each_group_has_its_own_blocks_and_slots() -> None:
    metadata = prepared().context.metadata
    assert metadata["full"].slot_mapping.tolist() == [36, 37, 38, 28, 24, 25]
    assert metadata["window"].slot_mapping.tolist() == [40, 41, 42, 8, 32, 33]
    assert metadata["full"].block_table.tolist() == [[9, 0], [3, 7], [5, 6]]
    assert metadata["window"].block_table.tolist() == [[10, 0], [4, 2], [0, 8]]
    for one in metadata.values():
        assert one.query_start_loc.tolist() == [0, 3, 4, 6]
        assert one.seq_lens.tolist() == [3, 5, 6]
        assert (one.max_query_len, one.max_seq_len) == (3, 6)
