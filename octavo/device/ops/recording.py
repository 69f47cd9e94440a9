"""Recording: a forward pass noted while it runs once, to be run again at any size.

A model runs as always; its native ops note their launches in a ``library.Graph``, with the addresses of what they read
and write. A step is then one native call. The rules, which ``Recorder`` enforces (CaptureError names the call and its
place):

- Between ops, model code may take views. Any other tensor call would be missing from the next step.
- Model code reads neither a tensor's values nor the number of tokens: both are those of this step only.
- Rows come first: the first axis of what a step computes is its tokens, or a multiple of them.

An op without a kernel, or whose wrapper turned to torch, splits the recording: it is called at its place at every step,
on views of the same memory.
"""

from __future__ import annotations

import math
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

from octavo.device.ops.native.context import NativeContext, Op
from octavo.words.errors import CaptureError

_ALIGNMENT = 64
_FRESH = ("empty", "zeros", "ones", "full", "new_", "arange")
_READS = frozenset(
    getattr(Tensor, name)
    for name in (
        *("__len__", "__iter__", "__bool__", "__int__", "__float__", "__index__", "__array__", "__contains__"),
        *("item", "tolist", "numpy", "numel", "nelement", "data_ptr"),
    )
)
_SHAPE = Tensor.shape.__get__
_ATEN = torch.ops.aten
_ALWAYS_VIEWS = frozenset(
    (_ATEN.view.default, _ATEN.view.dtype, _ATEN.slice.Tensor, _ATEN.select.int, _ATEN.as_strided.default)
)
"""What makes views and never anything else, which need not be found out from what it made."""


class Arena:
    """Memory of a step's intermediate results, for at most ``max_rows`` rows of each; pages nobody wrote cost nothing.

    A buffer is used again as soon as no tensor over it is left.
    """

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.buffers: dict[int, np.ndarray] = {}  # by address
        self._free: list[np.ndarray] = []

    @property
    def num_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers.values())

    def take(self, bytes_per_row: int) -> Tensor:
        """Room for ``max_rows`` rows, as bytes; it is taken until the tensor and all its views are gone."""
        num_bytes = self.max_rows * bytes_per_row
        buffer = min((b for b in self._free if b.nbytes >= num_bytes), key=lambda b: b.nbytes, default=None)
        if buffer is None:
            buffer = _aligned(num_bytes)
            self.buffers[buffer.ctypes.data] = buffer
        else:
            self._free = [other for other in self._free if other is not buffer]
        loan = buffer[:]  # an object of its own, which the tensor's storage holds
        weakref.finalize(loan, self._free_again, buffer).atexit = False
        return torch.from_numpy(loan)[:num_bytes]

    def _free_again(self, buffer: np.ndarray) -> None:
        self._free.append(buffer)


def _aligned(num_bytes: int) -> np.ndarray:
    memory = np.empty(num_bytes + _ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + num_bytes]


@dataclass(frozen=True, slots=True)
class Rows:
    """Where a tensor of a step lies, whatever the step's number of tokens."""

    base: Tensor  # all of the memory, in the tensor's dtype
    rows_per_token: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def at(self, num_tokens: int) -> Tensor:
        return self.base.as_strided((num_tokens * self.rows_per_token, *self.shape), self.strides, self.offset)


@dataclass(frozen=True, slots=True)
class StepValue:
    """Something each step brings anew, by name."""

    name: Any


@dataclass(frozen=True, slots=True)
class Split:
    """An op to be called from Python at every step; its results are copied to where the recording has them."""

    name: str
    where: str
    op: Op
    args: Any
    kwargs: Any
    results: tuple[Rows | None, ...]

    def run(self, num_tokens: int, values: Mapping[Any, Any]) -> None:
        def bind(value: Any) -> Any:
            if isinstance(value, Rows):
                return value.at(num_tokens)
            return values[value.name] if isinstance(value, StepValue) else value

        found = self.op(*tree_map(bind, self.args), **tree_map(bind, self.kwargs))
        for place, result in zip(self.results, _as_tuple(found), strict=True):
            if place is not None:
                place.at(num_tokens).copy_(result)


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded forward pass. Its result lies in its arena until the next replay."""

    native: NativeContext
    arena: Arena
    pieces: tuple[Any, ...]  # of library.Graph and Split
    result: Rows
    kept: tuple[Any, ...] = field(repr=False)  # what the graphs have addresses of
    results: dict[int, Tensor] = field(default_factory=dict, repr=False)  # views of the result, by number of tokens

    @property
    def graphs(self) -> list[Any]:
        return [piece for piece in self.pieces if not isinstance(piece, Split)]

    @property
    def splits(self) -> list[Split]:
        return [piece for piece in self.pieces if isinstance(piece, Split)]

    def replay(self, num_tokens: int, num_requests: int, values: Callable[[], Mapping[Any, Any]]) -> Tensor:
        """Run it on what now lies in the arrays it was recorded with; ``values`` is asked where there are splits."""
        pool = self.native.pool
        for piece in self.pieces:
            if isinstance(piece, Split):
                piece.run(num_tokens, values())
            else:
                piece.replay(pool, num_tokens, num_requests)
        if num_tokens not in self.results:
            self.results[num_tokens] = self.result.at(num_tokens)
        return self.results[num_tokens]


class Recorder:
    """Notes one forward pass; see the rules at the top.

    ``token_arrays`` and ``request_arrays`` are the fixed arrays of a step, whole, one entry per token or per request;
    ``values`` are objects each step brings anew, by name. The pass has ``num_tokens`` tokens of one request.
    """

    def __init__(
        self,
        native: NativeContext,
        arena: Arena,
        num_tokens: int,
        *,
        token_arrays: Sequence[Tensor],
        request_arrays: Sequence[Tensor] = (),
        values: Mapping[Any, Any] | None = None,
    ) -> None:
        self._native = native
        self._arena = arena
        self._num_tokens = num_tokens
        self._token_arrays = {_storage(array): array.reshape(-1).view(torch.uint8) for array in token_arrays}
        self._request_arrays = {_storage(array) for array in request_arrays}
        self._values = {id(value): StepValue(name) for name, value in (values or {}).items()}
        self._pieces: list[Any] = [native.library.Graph()]
        self._kept: list[Any] = list(token_arrays) + list(request_arrays)
        self._inside_op = False
        self._used_torch = False
        self._modules: list[str] = []

    def record(self, model: nn.Module, forward: Callable[[], Tensor]) -> Recording:
        """Run ``forward``, made of ``model``'s parts, and return what was noted. Raises CaptureError."""
        assert self._native.recorder is None, "one recording at a time"
        self._native.recorder = self
        try:
            with self._named_modules(model), _Reads(self), _Calls(self):
                result = forward()
        finally:
            self._native.recorder = None
        rows = self._rows(result)
        if not isinstance(rows, Rows):
            raise CaptureError(f"the forward pass returned a {type(result).__name__} that no op made")
        pieces = tuple(piece for piece in self._pieces if isinstance(piece, Split) or len(piece))
        return Recording(self._native, self._arena, pieces, rows, (*self._kept, result))

    # What ops say (native/context.py)

    def call(self, name: str, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], *, has_kernel: bool) -> Any:
        if self._inside_op:
            return op(*args, **kwargs)
        mark = len(self._pieces[-1])
        with self._inside():
            result = op(*args, **kwargs)
            if has_kernel and not self._used_torch:
                return result
            self._pieces[-1].truncate(mark)
            return self._split(name, op, (args, kwargs), result)

    def empty(self, rows: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        per_token = self._rows_per_token(len(rows))
        memory = self._arena.take(per_token * math.prod(shape) * dtype.itemsize)
        return memory.view(dtype).view(-1, *shape)[: len(rows)]

    def note(self, launch: Any, num_rows: int, tensors: tuple[Tensor, ...]) -> None:
        self._kept += [launch, *(tensor for tensor in tensors if not self._is_of_step(tensor))]
        self._pieces[-1].append(launch, self._rows_per_token(num_rows), self._where)

    # What torch says

    def saw(self, func: Any, given: Any, result: Any) -> None:
        """A tensor call was made."""
        if _is_view(func, given, result):
            return
        if not self._inside_op:
            raise CaptureError(
                f"{func} is called {_place()}: a recorded forward pass may call ops and take views, nothing else; "
                "make it an op of device/ops, or call it through Kernels.custom_op"
            )
        tensors = (value for value in tree_iter(given) if isinstance(value, Tensor))
        is_fresh = func.__name__.startswith(_FRESH)
        self._used_torch |= is_fresh or any(self._is_of_step(tensor) for tensor in tensors)

    def may_read(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether a property of a tensor may be read: of a step's tensors, not what differs from step to step."""
        return self._inside_op or not args or not isinstance(args[0], Tensor) or not self._is_of_step(args[0])

    # Parts

    @contextmanager
    def _inside(self) -> Iterator[None]:
        self._inside_op, self._used_torch = True, False
        try:
            yield
        finally:
            self._inside_op = False

    def _split(self, name: str, op: Op, given: Any, result: Any) -> Any:
        args, kwargs = tree_map(self._rows, given)
        results = tuple(None if each is None else self._copied(name, each) for each in _as_tuple(result))
        places = tuple(None if each is None else self._rows(each) for each in results)
        self._pieces += [Split(name, self._where, op, args, kwargs, places), self._native.library.Graph()]
        return results if isinstance(result, tuple) else results[0]

    def _copied(self, name: str, result: Any) -> Tensor:
        if not isinstance(result, Tensor) or not result.dim() or len(result) % self._num_tokens:
            raise CaptureError(f"op {name} returned what has no row per token, and has no kernel to be noted")
        place = self.empty(result, tuple(result.shape[1:]), result.dtype)
        place.copy_(result)
        return place

    def _rows(self, value: Any) -> Any:
        """What stands for a value at every step: itself where it is the same."""
        if id(value) in self._values:
            return self._values[id(value)]
        if not isinstance(value, Tensor) or not self._is_of_step(value):
            return value
        memory = self._memory(_storage(value))
        per_row = value.stride(0) if value.dim() else 0
        if memory is None or not value.dim() or value.shape[0] % self._num_tokens or per_row == 0:
            raise CaptureError(f"a tensor of shape {list(value.shape)} whose first axis is not the step's rows is used")
        base = memory[: memory.numel() // value.itemsize * value.itemsize].view(value.dtype)
        rows_per_token = value.shape[0] // self._num_tokens
        return Rows(base, rows_per_token, tuple(value.shape[1:]), value.stride(), value.storage_offset())

    def _memory(self, storage: int) -> Tensor | None:
        buffer = self._arena.buffers.get(storage)
        return self._token_arrays.get(storage) if buffer is None else torch.from_numpy(buffer)

    def _is_of_step(self, tensor: Tensor) -> bool:
        storage = _storage(tensor)
        return any(storage in known for known in (self._arena.buffers, self._token_arrays, self._request_arrays))

    def _rows_per_token(self, num_rows: int) -> int:
        per_token, rest = divmod(num_rows, self._num_tokens)
        if rest or not per_token:
            raise CaptureError(f"an op {self._where} runs over {num_rows} rows, which are not the step's")
        return per_token

    @property
    def _where(self) -> str:
        return self._modules[-1] if self._modules else ""

    @contextmanager
    def _named_modules(self, model: nn.Module) -> Iterator[None]:
        names = {id(module): name for name, module in model.named_modules()}
        enter = register_module_forward_pre_hook(lambda module, _: self._modules.append(names.get(id(module), "")))
        leave = register_module_forward_hook(lambda *_: void(self._modules.pop()), always_call=True)
        try:
            yield
        finally:
            enter.remove()
            leave.remove()


def void(_: Any) -> None:
    """A hook's result would replace the module's."""


class _Calls(TorchDispatchMode):
    """Shows a recorder every tensor call."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Torch would import all of its compiler, seconds of start-up, only to keep it away from this class.
        return False

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._recorder.saw(func, (args, kwargs), result)
        return result


class _Reads(TorchFunctionMode):
    """Refuses what would make one step's values or size part of the recording; much of it never is a tensor call."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._recorder.may_read(func, args):
            return func(*args, **kwargs)
        if func in _READS:
            raise CaptureError(
                f"Tensor.{func.__name__} is called {_place()}: what it reads is that of one step, and the recording is "
                "for all"
            )
        result = func(*args, **kwargs)
        if func == _SHAPE or (func == Tensor.size and isinstance(result, torch.Size)):
            return _RowsShape(result)
        if func == Tensor.size and (args[1:] or tuple(kwargs.values())) in ((0,), (-args[0].dim(),)):
            raise _shape_error()
        return result


class _RowsShape(tuple):
    """A shape whose first number, the rows, cannot be read."""

    def __getitem__(self, index: Any) -> Any:
        touched = range(len(self))[index]
        if 0 in touched if isinstance(touched, range) else touched == 0:
            raise _shape_error()
        return super().__getitem__(index)

    def __iter__(self) -> Any:
        raise _shape_error()


def _shape_error() -> CaptureError:
    return CaptureError(
        f"the number of tokens is read {_place()}: it is that of one step, and the recording is for all; "
        "say -1, or use flatten and unflatten"
    )


def _place() -> str:
    """The line of Python, outside torch and this file, that is at work."""
    for frame in reversed(traceback.extract_stack()):
        if frame.filename != __file__ and "/torch/" not in frame.filename:
            return f"at {frame.filename}:{frame.lineno} ({frame.line})"
    return "somewhere"


def _is_view(func: Any, given: Any, result: Any) -> bool:
    if func in _ALWAYS_VIEWS:
        return True
    if func._schema.is_mutable:
        return False
    storages = {_storage(value) for value in tree_iter(given) if isinstance(value, Tensor)}
    results = list(tree_iter(result))
    return bool(results) and all(isinstance(value, Tensor) and _storage(value) in storages for value in results)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _as_tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)
