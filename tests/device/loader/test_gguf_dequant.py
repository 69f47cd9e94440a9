from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.device.loader.gguf_dequant import BLOCK_SIZES, CHUNK_ELEMENTS, DEQUANTIZE, dequantize_rows

gguf = pytest.importorskip("gguf")


def random_rows(name: str, num_rows: int, columns: int) -> np.ndarray:
    block_bytes, block_size = BLOCK_SIZES[name]
    rng = np.random.default_rng(7)
    return rng.integers(0, 256, (num_rows, columns // block_size * block_bytes), dtype=np.uint8)


def reference(name: str, rows: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[name]))


@pytest.mark.parametrize("name", DEQUANTIZE)
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # random bits hold NaN and infinite scales
def test_random_blocks_agree_with_the_reference_to_the_bit(name: str) -> None:
    """Every bit pattern is a valid block, so random bytes reach every code path, NaN scales included."""
    rows, columns = random_rows(name, num_rows=301, columns=512), 512
    out = torch.full((301, columns), 7.0)
    dequantize_rows(name, rows, out)
    found, expected = out.numpy(), reference(name, rows)
    same = (found.view(np.int32) == expected.view(np.int32)) | (np.isnan(found) & np.isnan(expected))
    assert same.all()
    assert np.isfinite(found).mean() > 0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_dtypes_are_the_float32_values_rounded(dtype: torch.dtype) -> None:
    rows = random_rows("Q4_0", num_rows=70, columns=1024)
    assert rows.shape[0] * 1024 > CHUNK_ELEMENTS  # several steps, the last one short
    rows.reshape(-1, 18)[:, 1] = 0x2C  # scales near 0.06
    wide, narrow = torch.empty(70, 1024), torch.empty(70, 1024, dtype=dtype)
    dequantize_rows("Q4_0", rows, wide)
    dequantize_rows("Q4_0", rows, narrow)
    assert torch.equal(narrow, wide.to(dtype))


def test_rows_longer_than_a_step_are_filled() -> None:
    rows = random_rows("Q8_0", num_rows=2, columns=CHUNK_ELEMENTS + 32)
    rows.reshape(-1, 34)[:, 1] = 0x2C
    out = torch.full((2, CHUNK_ELEMENTS + 32), float("nan"))
    dequantize_rows("Q8_0", rows, out)
    assert np.array_equal(out.numpy(), reference("Q8_0", rows))
