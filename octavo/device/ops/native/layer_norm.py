"""The layer norms of encoders by one native kernel: it adds up rows of several places, and normalises the sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from octavo.device.ops.native.context import NativeContext
from octavo.device.ops.native.dtypes import is_bfloat16


def add_layer_norm(native: NativeContext) -> Callable[..., Tensor]:
    """The op with the contract of ``ops/add_layer_norm``."""
    launch = native.library.layer_norm

    def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        x, residual, width = x.contiguous(), residual.contiguous(), x.shape[-1]
        assert x.shape == residual.shape and weight.shape == bias.shape == (width,)
        assert x.dtype == residual.dtype == weight.dtype == bias.dtype
        out = native.empty(x, *x.shape[1:])
        sources = [(x.data_ptr(), 0, 0), (residual.data_ptr(), 0, 0)]
        addresses = (tensor.data_ptr() for tensor in (weight, bias, out))
        norm = launch(sources, *addresses, width, eps, is_bfloat16(x.dtype))
        native.run(norm, x.numel() // width, x, residual, weight, bias, out)
        return out

    return add_layer_norm


def embedding_layer_norm(native: NativeContext) -> Callable[..., Tensor]:
    """The op with the contract of ``ops/embedding_layer_norm``."""
    launch = native.library.layer_norm

    def embedding_layer_norm(
        ids: Sequence[Tensor], tables: Sequence[Tensor], weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        ids, tables = [each.contiguous() for each in ids], [table.contiguous() for table in tables]
        assert all(each.dtype == torch.int64 for each in ids)
        assert all(table.shape[1:] == weight.shape == bias.shape for table in tables)
        assert all(tensor.dtype == weight.dtype for tensor in (*tables, bias))
        out = native.empty(ids[0], *weight.shape, dtype=weight.dtype)
        sources = [(table.data_ptr(), rows.data_ptr(), len(table)) for rows, table in zip(ids, tables, strict=True)]
        addresses = (tensor.data_ptr() for tensor in (weight, bias, out))
        norm = launch(sources, *addresses, len(weight), eps, is_bfloat16(weight.dtype))
        native.run(norm, len(ids[0]), *ids, *tables, weight, bias, out)
        return out

    return embedding_layer_norm
