from __future__ import annotations

import numpy as np
import pytest

from octavo.device.worker.block_table import FIRST_COLUMNS, BlockTable


def slots(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_a_token_lies_in_its_block_at_its_offset() -> None:
    table = BlockTable(3, block_size=4, kernel_block_size=4)
    table.append(1, [9, 2])
    table.append(2, [5])
    assert table.slot_mapping(slots(1, 1, 1, 2), slots(0, 3, 5, 2)).tolist() == [36, 39, 9, 22]
    assert table.kernel_blocks(slots(2, 1), 8).tolist() == [[5, 0], [9, 2]]
    assert table.kernel_blocks(slots(2), 4).tolist() == [[5]]


def test_a_block_can_be_several_kernel_blocks() -> None:
    table = BlockTable(1, block_size=6, kernel_block_size=2)
    table.append(0, [3, 1])
    assert table.kernel_blocks(slots(0), 7).tolist() == [[9, 10, 11, 3, 4, 5]]
    # The same places, counted in blocks or in kernel blocks.
    positions = np.arange(12)
    kernel_blocks = table.kernel_blocks(slots(0), 12)[0]
    expected = kernel_blocks[positions // 2] * 2 + positions % 2
    assert table.slot_mapping(np.zeros(12, dtype=np.int64), positions).tolist() == expected.tolist()


def test_kernel_blocks_divide_the_block() -> None:
    with pytest.raises(AssertionError, match="whole number"):
        BlockTable(1, block_size=6, kernel_block_size=4)


def test_a_cleared_slot_shows_the_null_block() -> None:
    table = BlockTable(1, block_size=2, kernel_block_size=2)
    table.append(0, [4, 5, 6])
    table.clear(0)
    table.append(0, [7])
    assert table.kernel_blocks(slots(0), 6).tolist() == [[7, 0, 0]]


def test_columns_grow_with_the_blocks() -> None:
    table = BlockTable(2, block_size=1, kernel_block_size=1)
    table.append(0, [8])
    table.append(1, list(range(1, FIRST_COLUMNS + 1)))
    table.append(1, [99])
    assert table.kernel_blocks(slots(1), FIRST_COLUMNS + 1)[0].tolist() == [*range(1, FIRST_COLUMNS + 1), 99]
    assert table.kernel_blocks(slots(0), 2).tolist() == [[8, 0]]
