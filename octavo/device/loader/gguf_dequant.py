"""GGUF block formats -> float32, one function per format, in the order of operations of the format's reference.

Every function takes ``blocks`` uint8 [n, block bytes] and ``out`` float32 [n, block size], both contiguous, and fills
``out``; each fixes the same roundings as the reference dequantiser, so results agree to the bit. Names of fields
follow the format: ``qs`` the low bits, ``qh`` the high bits, scales and minima by that name.

This is numpy, not torch: an operation on a cache-sized piece costs less to call, it stays on the calling thread, and
the interpreter's lock is free meanwhile, so that several loader threads help and never wait for torch's own pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.checkpoint.gguf_header import TENSOR_TYPES

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Dequantize = Callable[[Bytes, Floats], None]

# Elements per step: temporaries stay in the second-level cache, and torch, which converts half precision and from
# float32, splits no copy of this size between threads.
CHUNK_ELEMENTS = 2**15
IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)
ONES = 0x0101010101010101
# The bits of a byte, lowest first, as eight bytes that hold 0 or 1.
BITS_OF_BYTE = ((np.arange(256)[:, None] >> np.arange(8)) & 1).astype(np.uint8).view(np.uint64).ravel()


def dequantize_rows(type_name: str, rows: Bytes, target: Tensor) -> None:
    """Fill ``target`` [num_rows, columns], of any float dtype, from ``rows`` [num_rows, row bytes].

    ``type_name`` is a key of ``DEQUANTIZE``. Runs on the calling thread.
    """
    dequantize, (block_bytes, block_size) = DEQUANTIZE[type_name], BLOCK_SIZES[type_name]
    direct = target.dtype == torch.float32
    num_rows, columns = target.shape
    step = max(1, CHUNK_ELEMENTS // columns)
    out = target.numpy() if direct else np.empty((min(step, num_rows), columns), dtype=np.float32)
    for start in range(0, num_rows, step):
        part = rows[start : start + step]
        values = out[start : start + step] if direct else out[: len(part)]
        dequantize(part.reshape(-1, block_bytes), values.reshape(-1, block_size))
        if not direct:
            target[start : start + step].copy_(torch.from_numpy(values))


def _f16(blocks: Bytes, start: int) -> Floats:
    """The half-precision field at byte ``start`` of each block: [n, 1]."""
    return blocks.view(np.float16)[:, start // 2, None].astype(np.float32)


def _bits(qh: Bytes) -> Bytes:
    """The bits of each byte, the lowest first: [n, b] -> [n, b * 8]."""
    return BITS_OF_BYTE[qh].view(np.uint8)


def _planes(qs: Bytes, width: int, bits: int) -> Bytes:
    """Split groups of ``width`` bytes into planes of ``bits`` bits: [n, g * width] -> [n, g * 8 / bits * width].

    Plane p of a group holds bits [p * bits, (p + 1) * bits) of its bytes. Works on several bytes at a time; the mask
    drops what a shift brings in from the neighbour.
    """
    word: Any = np.uint64 if width % 8 == 0 else np.uint32
    mask = word(ONES * (2**bits - 1) & np.iinfo(word).max)
    words = np.ascontiguousarray(qs).view(word).reshape(len(qs), -1, width // word(0).itemsize)
    planes = np.empty((*words.shape[:2], 8 // bits, words.shape[2]), dtype=word)
    for plane in range(8 // bits):
        np.bitwise_and(words >> word(plane * bits), mask, out=planes[:, :, plane])
    return planes.reshape(len(qs), -1).view(np.uint8)


def _f32(blocks: Bytes, out: Floats) -> None:
    out[:] = blocks.view(np.float32)


def _f16_values(blocks: Bytes, out: Floats) -> None:
    torch.from_numpy(out).copy_(torch.from_numpy(blocks.view(np.float16)))


def _bf16(blocks: Bytes, out: Floats) -> None:
    np.left_shift(blocks.view(np.uint16), 16, out=out.view(np.uint32), dtype=np.uint32)


def _q8_0(blocks: Bytes, out: Floats) -> None:
    out[:] = blocks[:, 2:].view(np.int8)
    out *= _f16(blocks, 0)


def _q4_0(blocks: Bytes, out: Floats) -> None:
    out[:] = _planes(blocks[:, 2:], 16, 4)
    out -= 8
    out *= _f16(blocks, 0)


def _q4_1(blocks: Bytes, out: Floats) -> None:
    out[:] = _planes(blocks[:, 4:], 16, 4)
    out *= _f16(blocks, 0)
    out += _f16(blocks, 2)


def _q5(qs: Bytes, qh: Bytes) -> Bytes:
    return _planes(qs, 16, 4) | (_bits(qh) << np.uint8(4))


def _q5_0(blocks: Bytes, out: Floats) -> None:
    out[:] = _q5(blocks[:, 6:], blocks[:, 2:6])
    out -= 16
    out *= _f16(blocks, 0)


def _q5_1(blocks: Bytes, out: Floats) -> None:
    out[:] = _q5(blocks[:, 8:], blocks[:, 4:8])
    out *= _f16(blocks, 0)
    out += _f16(blocks, 2)


def _iq4_nl(blocks: Bytes, out: Floats) -> None:
    np.take(IQ4_VALUES, _planes(blocks[:, 2:], 16, 4), out=out, mode="clip")
    out *= _f16(blocks, 0)


def _scale_groups(out: Floats, scales: Floats, minima: Floats | None = None) -> None:
    """Multiply each of a block's groups by its scale and subtract its minimum: scales and minima [n, groups]."""
    groups = out.reshape(*scales.shape, -1)
    groups *= scales[:, :, None]
    if minima is not None:
        groups -= minima[:, :, None]


def _q2_k(blocks: Bytes, out: Floats) -> None:
    scales = blocks[:, :16]
    out[:] = _planes(blocks[:, 16:80], 32, 2)
    _scale_groups(out, _f16(blocks, 80) * (scales & 15), _f16(blocks, 82) * (scales >> 4))


def _q3_k(blocks: Bytes, out: Floats) -> None:
    scales = _planes(blocks[:, 96:104], 8, 4) | _planes(blocks[:, 104:108], 4, 2) << 4
    # A set bit of the mask says that nothing is subtracted, a clear one that 4 is.
    out[:] = _planes(blocks[:, 32:96], 32, 2) | _planes(blocks[:, :32], 32, 1) << 2
    out -= 4
    _scale_groups(out, _f16(blocks, 108) * (scales.astype(np.float32) - 32))


def _six_bit_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """The eight scales and minima that Q4_K and Q5_K blocks begin with, 6 bits each in 12 bytes: [n, 8] twice."""
    scale, minimum, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([scale & 63, (rest & 15) | (scale >> 2 & 48)], axis=1)
    minima = np.concatenate([minimum & 63, (rest >> 4) | (minimum >> 2 & 48)], axis=1)
    return _f16(blocks, 0) * scales, _f16(blocks, 2) * minima


def _q4_k(blocks: Bytes, out: Floats) -> None:
    out[:] = _planes(blocks[:, 16:], 32, 4)
    _scale_groups(out, *_six_bit_scales(blocks))


def _q5_k(blocks: Bytes, out: Floats) -> None:
    out[:] = _planes(blocks[:, 48:], 32, 4) | _planes(blocks[:, 16:48], 32, 1) << 4
    _scale_groups(out, *_six_bit_scales(blocks))


def _q6_k(blocks: Bytes, out: Floats) -> None:
    out[:] = _planes(blocks[:, :128], 64, 4) | _planes(blocks[:, 128:192], 32, 2) << 4
    out -= 32
    _scale_groups(out, _f16(blocks, 208) * blocks[:, 192:208].view(np.int8))


DEQUANTIZE: Mapping[str, Dequantize] = {
    "F32": _f32,
    "F16": _f16_values,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
}
"""Formats that can be read, by the names that headers give them."""

BLOCK_SIZES: Mapping[str, tuple[int, int]] = {
    each.name: (each.block_bytes, each.block_size) for each in TENSOR_TYPES.values() if each.name in DEQUANTIZE
}
"""Format -> (bytes, elements) of a block."""
