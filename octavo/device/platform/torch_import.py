"""Torch, imported sooner: half of ``import torch`` serves compiling, exporting and training, which no engine does.

In a process of our own those modules are there at once, and when one of them is first touched all run, in the order in
which torch imports them. So nothing is missing, only later; one thing is seen to be: operations on the device "meta"
whose shapes are known to Python alone wait for ``complete_torch``. In a process of somebody who uses the library torch
is imported as ever.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from threading import RLock, Thread
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from octavo.util.collector import paused_collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.abc import Loader  # imports more than a start needs

VERIFIED = ("2.13.",)
"""Torch's modules import each other in circles, so that another order is to be tried with every version."""

LAZY = frozenset(
    {
        "torch._higher_order_ops",
        "torch._meta_registrations",  # with torch._decomp, _refs and _prims
        "torch.compiler",
        "torch.distributed._meta_registrations",
        "torch.distributions",
        "torch.export",
        "torch.func",
        "torch.fx",
        "torch.fx.experimental",
        "torch.fx.traceback",
        "torch.hub",
        "torch.masked",
        "torch.nested",
        "torch.nn.intrinsic",
        "torch.nn.qat",
        "torch.nn.quantizable",
        "torch.nn.quantized",
        "torch.optim",
        "torch.profiler",
        "torch.quantization",
        "torch.signal.windows",
        "torch.utils.data",
        "torchgen.model",
        "unittest.mock",  # with asyncio
    }
)

PACKAGES = ("torch.", "torchgen.")

BEFORE_TORCH = (
    *("numpy", "msgspec", "markupsafe._speedups", "safetensors._safetensors_rust"),
    *("_bisect", "_blake2", "_bz2", "_csv", "_hashlib", "_heapq", "_json", "_lzma", "_posixsubprocess", "_queue"),
    *("_random", "_sha512", "array", "binascii", "fcntl", "mmap", "resource", "select", "zlib"),
)
"""What our own imports load of libraries. One is loaded at a time, so these would wait for torch's."""


def _calls(name: str) -> Callable[[LazyModule], Any]:
    """Makes what stands in for a function: called, it runs the module and calls the function."""

    def stand_in_for(module: LazyModule) -> Any:
        def stand_in(*args: Any, **options: Any) -> Any:
            module.run()
            return vars(module)[name](*args, **options)

        return stand_in

    return stand_in_for


def _nothing_is_compiled(module: LazyModule) -> Any:
    return lambda: False


STAND_INS: dict[str, dict[str, Callable[[LazyModule], Any]]] = {
    "torch._higher_order_ops": {"cond": _calls("cond"), "while_loop": _calls("while_loop")},
    "torch.compiler": {"is_compiling": _nothing_is_compiled},
    "torch.func": {"vmap": _calls("vmap")},
}
"""Functions of lazy modules that torch takes out while it is imported, or asks at every forward pass."""


def import_torch_lazily() -> None:
    """From now on ``import torch`` leaves the modules of ``LAZY`` for later, in this process. Loads nothing by itself.

    Changes nothing where torch is loaded already, is of another version, or is not there.
    """
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _LazyTorch())


def complete_torch() -> None:
    """Have all of torch, as after a plain import, or import it so: for code that is not ours. Loads no torch."""
    for finder in list(sys.meta_path):
        if isinstance(finder, _LazyTorch):
            finder.complete()


def begin_loading_torch() -> None:
    """Have a thread load the library that ``import torch`` spends a third of its time on, beside other imports.

    Does nothing where torch is imported already or not there; what else is wrong ``import torch`` will tell.
    """
    spec = None if "torch" in sys.modules else PathFinder.find_spec("torch")
    if spec is None or spec.origin is None:
        return
    library = os.path.join(os.path.dirname(spec.origin), "lib", "libtorch_cpu.so")
    if not os.path.exists(library):
        return
    for name in BEFORE_TORCH:
        with suppress(ImportError):
            import_module(name)
    Thread(target=_load_library, args=(library,), name="octavo-torch").start()


@contextmanager
def importing_an_engine() -> Iterator[None]:
    """Around a command's imports of its own engine: torch's library loads beside them, and nothing is collected."""
    begin_loading_torch()
    with paused_collector():
        yield


def _load_library(path: str) -> None:
    import ctypes

    load = ctypes.CDLL(None).dlopen  # called so, and not through CDLL, it holds no lock of Python's
    load.argtypes, load.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    load(os.fsencode(path), os.RTLD_NOW)


class LazyModule(ModuleType):
    """A module that runs, with all others of its torch, when it is first asked for what it does not have yet.

    Safe in any thread.
    """

    def __getattr__(self, name: str) -> Any:
        if name != "__path__":  # a package has that from the start, and every import asks for it
            self.run()
        if type(self) is LazyModule:  # it is being run by this thread
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} yet")
        return getattr(self, name)

    def run(self) -> None:
        """Run it, unless this thread does so already. What its code raises is raised, and it runs again next time."""
        assert self.__spec__ is not None
        loader = self.__spec__.loader
        assert isinstance(loader, _LazyLoader)
        loader.torch.run(self)


class _LazyTorch:
    """Finds torch and what of it is lazy, and runs that when it is touched.

    While torch is imported, that is one module, and what is in a package can be imported without it. Afterwards it is
    all of them, in the order in which they were found, before anything more of torch is imported: its modules rely on
    their order.
    """

    def __init__(self) -> None:
        self.modules: list[LazyModule] = []
        self._lazy: frozenset[str] = frozenset()
        self._lock = RLock()
        self._is_importing = True
        self._running: list[LazyModule] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not self._is_importing:
            return self._find_more(name)
        if name == "torch":
            self._lazy = LAZY if _version().startswith(VERIFIED) else frozenset()
            return _find(name, path, lambda place: _TorchLoader(name, place, self))
        return _find(name, path, lambda place: _LazyLoader(name, place, self)) if name in self._lazy else None

    def end_import(self) -> None:
        """Torch is imported."""
        self._is_importing = False
        self._leave_if_done()

    def complete(self) -> None:
        """Leave nothing for later."""
        self._is_importing = False
        self._run_all()

    def run(self, touched: LazyModule) -> None:
        """Run what is touched, and what is due with it."""
        with self._lock:
            if self._is_importing or self._running:
                self._run(touched)
            else:
                self._run_all()

    def _find_more(self, name: str) -> ModuleSpec | None:
        if not name.startswith(PACKAGES) or not self._lock.acquire(blocking=False):  # else two imports could wait
            return None
        try:
            if self._running:
                return None
            self._run_all()
        finally:
            self._lock.release()
        if name not in sys.modules:
            return None
        return ModuleSpec(name, cast("Loader", _Imported(sys.modules[name])))

    def _run_all(self) -> None:
        with self._lock:
            for module in self.modules:
                self._run(module)
            self._leave_if_done()

    def _run(self, module: LazyModule) -> None:
        if not isinstance(module, LazyModule) or module in self._running:
            return
        assert module.__spec__ is not None and isinstance(module.__spec__.loader, _LazyLoader)
        self._running.append(module)
        try:
            module.__spec__.loader.run(module)
        finally:
            self._running.remove(module)

    def _leave_if_done(self) -> None:
        if not any(isinstance(module, LazyModule) for module in self.modules):
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]


class _TorchLoader(SourceFileLoader):
    def __init__(self, name: str, path: str, finder: _LazyTorch) -> None:
        super().__init__(name, path)
        self._finder = finder

    def exec_module(self, module: ModuleType) -> None:
        try:
            super().exec_module(module)
        finally:
            self._finder.end_import()


class _LazyLoader(SourceFileLoader):
    def __init__(self, name: str, path: str, torch: _LazyTorch) -> None:
        super().__init__(name, path)
        self.torch = torch

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = LazyModule
        assert isinstance(module, LazyModule)
        for name, stand_in_for in STAND_INS.get(module.__name__, {}).items():
            setattr(module, name, stand_in_for(module))
        self.torch.modules.append(module)

    def run(self, module: ModuleType) -> None:
        """Run it indeed; torch has the functions then, not what stood in for them."""
        stand_ins = {name: vars(module)[name] for name in STAND_INS.get(module.__name__, {})}
        super().exec_module(module)
        module.__class__ = ModuleType
        taken = vars(sys.modules["torch"])
        for name, stand_in in stand_ins.items():
            if taken.get(name) is stand_in:
                taken[name] = vars(module)[name]


class _Imported:
    """Brings a module that was imported while it was looked for; with its spec in place it would run twice."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec, module.__spec__ = module.__spec__, None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def _find(name: str, path: Sequence[str] | None, loader: Callable[[str], SourceFileLoader]) -> ModuleSpec | None:
    spec = PathFinder.find_spec(name, path)
    if spec is not None and isinstance(spec.loader, SourceFileLoader):
        spec.loader = loader(spec.loader.path)
    return spec


def _version() -> str:
    from importlib import metadata  # takes a while, and is for those alone who import torch

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""
