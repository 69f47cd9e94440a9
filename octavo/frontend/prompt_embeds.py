"""Embeddings that a user gives in place of the tokens of a prompt."""

from __future__ import annotations

import base64
import binascii
import io
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, deserialize

from octavo.words.errors import RequestError

Embeds = npt.NDArray[np.float32]
TENSOR_KINDS = ("torch.float32", "torch.float16", "torch.bfloat16")
NPY_MAGIC = b"\x93NUMPY"
UNREADABLE = (binascii.Error, ValueError, SafetensorError, KeyError, TypeError, OverflowError, SyntaxError, TokenError)
STORED_TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def checked_embeds(given: Any, hidden_size: int) -> Embeds:
    """[tokens, hidden_size] float32. Raises RequestError for another shape or type, or for what is not finite."""
    kind = str(getattr(given, "dtype", type(given).__name__))
    if kind in TENSOR_KINDS:  # of torch, which is not loaded here
        given = given.detach().float().cpu().numpy()
    elif not isinstance(given, np.ndarray) or given.dtype not in (np.float32, np.float16):
        raise _wrong(f"must be an array of float32 or float16, or a tensor of these or bfloat16, got {kind}")
    if given.ndim != 2 or given.shape[1] != hidden_size or not len(given):
        raise _wrong(f"must have the shape [tokens, {hidden_size}], got {list(given.shape)}")
    if not np.isfinite(given).all():
        raise _wrong("hold NaN or infinity")
    return np.ascontiguousarray(given, dtype=np.float32)


def decode_embeds(text: str) -> npt.NDArray[Any]:
    """The array in a base64 text: an .npy file, or safetensors with one tensor; nothing that could hold code.

    Raises RequestError.
    """
    try:
        data = base64.b64decode(text, validate=True)
        return _from_npy(data) if data.startswith(NPY_MAGIC) else _from_safetensors(data)
    except (*UNREADABLE, RecursionError, MemoryError) as error:  # the last two: a header of brackets in brackets
        raise _wrong(f"must be base64 of an .npy file or of safetensors with one tensor: {error!s:.120}") from error


def _from_npy(data: bytes) -> npt.NDArray[Any]:
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    if version not in READERS:
        raise ValueError(f"version {version} of .npy files is not read")
    shape, is_fortran, dtype = READERS[version](stream)
    if is_fortran or dtype.hasobject:
        raise ValueError("arrays must be in C order and hold numbers")
    # Bounded by what was sent, whatever the header says.
    return np.frombuffer(data, dtype, offset=stream.tell()).reshape(shape)


def _from_safetensors(data: bytes) -> npt.NDArray[Any]:
    ((_, tensor),) = deserialize(data)  # type: ignore[no-untyped-call]
    kind = tensor["dtype"]
    if kind not in STORED_TYPES:
        raise ValueError(f"a tensor of {kind} is not read, only of {', '.join(STORED_TYPES)}")
    array: npt.NDArray[Any] = np.frombuffer(tensor["data"], STORED_TYPES[kind]).reshape(tensor["shape"])
    if kind == "BF16":  # the upper halves of float32
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def _wrong(what: str) -> RequestError:
    return RequestError(f"prompt_embeds {what}.", param="prompt_embeds")
