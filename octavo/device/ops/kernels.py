"""The vocabulary as one value: what models call, whichever backend computes it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from octavo.device.ops.native.context import NativeContext, Op, open_native
from octavo.device.ops.table import OPS
from octavo.util.lazy import resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """One callable per op of ``ops/table.py``, each with the contract of its reference.

    ``backend`` is the table's name of those asked for; ``missing`` names the ops it has no kernel for, which the
    reference serves. ``native`` is what native kernels run on (None for the reference): a backend's weight formats
    and its attention need it too.
    """

    add_layer_norm: Op
    add_rms_norm: Op
    embedding: Op
    embedding_layer_norm: Op
    encoder_attention: Op
    gate_up_activation: Op
    linear: Op
    linear_activation: Op
    lm_head: Op
    lm_head_best: Op
    lora: Op
    paged_attention: Op
    qkv_rope_write: Op
    rms_norm: Op
    rope: Op
    backend: str
    missing: frozenset[str] = frozenset()
    native: NativeContext | None = None

    def custom_op(self, function: Op, *args: Any, **kwargs: Any) -> Any:
        """Call a model's own op, of tensors with a row per token; where steps are captured it splits the graph."""
        if self.native is None:
            return function(*args, **kwargs)
        return self.native.op(getattr(function, "__name__", "custom op"), function, has_kernel=False)(*args, **kwargs)


OP_NAMES = tuple(field.name for field in fields(Kernels) if field.name in OPS)


def load_kernels(backend: str, num_threads: int = 1, isa: str = "auto", cpus: Sequence[int] = ()) -> Kernels:
    """The kernels of a backend: "reference", or "native" on ``num_threads`` own threads and instruction set ``isa``.

    Threads stay on ``cpus``, if there are any.

    An entry of the table names the op itself for the reference, and for another backend a function that takes the
    NativeContext and returns the op. Raises ConfigError where the backend cannot be had.
    """
    reference = {name: resolve(OPS[name]["reference"]) for name in OP_NAMES}
    if backend == "reference":
        return Kernels(**reference, backend=backend)
    native = open_native(num_threads, isa, cpus)
    own = {name: resolve(OPS[name][backend])(native) for name in OP_NAMES if backend in OPS[name]}
    ops = {name: native.op(name, op, has_kernel=name in own) for name, op in (reference | own).items()}
    return Kernels(**ops, backend=backend, missing=frozenset(OP_NAMES) - own.keys(), native=native)


def with_reference(kernels: Kernels, names: Collection[str]) -> Kernels:
    """The same kernels, but with the reference of these ops."""
    ops = {name: resolve(OPS[name]["reference"]) for name in names}
    if kernels.native is None:
        return replace(kernels, **ops)
    seen = {name: kernels.native.op(name, op, has_kernel=False) for name, op in ops.items()}
    return replace(kernels, **seen, missing=kernels.missing | seen.keys())


REFERENCE_KERNELS = load_kernels("reference")
