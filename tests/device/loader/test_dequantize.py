from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo.device.loader.dequantize import NATIVE_DTYPES, dequantizer
from octavo.device.loader.gguf_dequant import BLOCK_SIZES, DEQUANTIZE, Bytes, dequantize_rows

native = pytest.importorskip("octavo._native")


# As the bits of two half-precision numbers, of two bfloat16 or of one float32: infinities, NaN, subnormals, -0 ...
SPECIAL = (0x7C007C00, 0xFC00FC00, 0x7E007E00, 0x7F807F80, 0x7F800000, 0xFF800000, 0x00010001, 0x80008000, 0x7BFF7BFF,
           0x7F7FFFFF, 0x3C007C00, 0x7C003C00)  # fmt: skip


def random_rows(name: str, num_rows: int, columns: int) -> Bytes:
    block_bytes, block_size = BLOCK_SIZES[name]
    rng = np.random.default_rng(11)
    return rng.integers(0, 256, (num_rows, columns // block_size * block_bytes), dtype=np.uint8)


def assert_same_bits(found: Tensor, expected: Tensor) -> None:
    """One NaN is as good as another: which bits it has is the processor's affair."""
    words = torch.int32 if found.dtype == torch.float32 else torch.int16
    same = (found.view(words) == expected.view(words)) | (found.isnan() & expected.isnan())
    assert same.all()


@pytest.mark.parametrize("dtype", NATIVE_DTYPES, ids=str)
@pytest.mark.parametrize("name", DEQUANTIZE)
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # that is what NaN and infinite scales do
def test_the_native_library_agrees_with_numpy_to_the_bit(name: str, dtype: torch.dtype) -> None:
    """Every bit pattern is a valid block: the first are made of special numbers, where scales are special too."""
    rows = random_rows(name, num_rows=301, columns=1024)
    for row, bits in zip(rows.view(np.uint32), SPECIAL, strict=False):
        row[:] = bits
    found, expected = torch.full((301, 1024), 7.0, dtype=dtype), torch.full((301, 1024), 8.0, dtype=dtype)
    assert dequantizer(dtype) == native.dequantize
    dequantizer(dtype)(name, rows, found)
    dequantize_rows(name, rows, expected)
    assert_same_bits(found, expected)
    assert expected.isnan().any()
    assert expected.isfinite().float().mean() > 0.5


def test_every_half_precision_number_is_read_exactly() -> None:
    halves = np.arange(2**16, dtype=np.uint16)
    found = torch.empty(1, 2**16)
    native.dequantize("F16", halves.view(np.uint8), found)
    assert_same_bits(found[0], torch.from_numpy(halves.view(np.float16).astype(np.float32)))


def test_numpy_does_what_the_native_library_cannot() -> None:
    assert dequantizer(torch.float16) is dequantize_rows
    assert dequantizer(torch.float32, native=None) is dequantize_rows


def test_the_native_library_checks_what_it_is_given() -> None:
    rows, out = random_rows("Q8_0", 4, 32), torch.full((4, 32), 7.0)
    before = out.clone()
    with pytest.raises(ValueError, match="no block format Q8_K"):
        native.dequantize("Q8_K", rows, out)
    with pytest.raises(ValueError, match="102 bytes of Q8_0 are not 128 numbers"):
        native.dequantize("Q8_0", rows[1:], out)
    with pytest.raises(ValueError, match="135 bytes of Q8_0 are not 128 numbers"):
        native.dequantize("Q8_0", rows.ravel()[1:], out)
    with pytest.raises(ValueError, match="float32 and bfloat16"):
        native.dequantize("Q8_0", rows, out.half())
    with pytest.raises(TypeError):  # not contiguous
        native.dequantize("Q8_0", rows, torch.empty(4, 64)[:, ::2])
    assert torch.equal(out, before)
