"""What a model is built with, beside the facts of its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo.device.attention.backend import AttentionBackend
from octavo.device.layers.quantization.method import QuantMethod
from octavo.device.layers.quantization.unquantized import UNQUANTIZED
from octavo.device.ops.kernels import REFERENCE_KERNELS, Kernels


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Decisions of the Plan in the device plane's terms.

    ``dtype`` is that of weights and activations. ``max_model_len`` sizes the rotary tables: positions stay below
    it (with "auto", the checkpoint's limit). ``quantization``, ``head_quantization`` (of an embedding tied to the
    head too) and ``embedding_quantization`` (of one that is not) are formats that ``kernels`` read. ``has_head`` is
    False where nobody asks for logits, as where texts are pooled: the output head is then not built, nor loaded.
    """

    dtype: torch.dtype
    kv_cache_dtype: torch.dtype
    max_model_len: int
    attention: AttentionBackend
    kernels: Kernels = REFERENCE_KERNELS
    quantization: QuantMethod = UNQUANTIZED
    head_quantization: QuantMethod = UNQUANTIZED
    embedding_quantization: QuantMethod = UNQUANTIZED
    has_head: bool = True
