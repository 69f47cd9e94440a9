"""Torch, imported sooner: a third of ``import torch`` serves compiling, exporting and training, which no engine does.

In a process of our own those modules are there at once and run when they are first touched, so nothing is missing, only
later; one thing is seen to be: operations on the device "meta" whose shapes are known to Python alone wait for
``complete_torch``. In a process of somebody who uses the library torch is imported as ever.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

VERIFIED = ("2.13.",)
"""Torch's modules import each other in circles, so that another order is to be tried with every version."""

LAZY = frozenset(
    {
        "torch._meta_registrations",  # with torch._decomp, _refs and _prims
        "torch.distributed._meta_registrations",
        "torch.distributions",
        "torch.export",
        "torch.masked",
        "torch.nn.intrinsic",
        "torch.nn.qat",
        "torch.nn.quantizable",
        "torch.nn.quantized",
        "torch.optim",
        "torch.profiler",
        "torch.quantization",
    }
)


def import_torch_lazily() -> None:
    """From now on ``import torch`` leaves the modules of ``LAZY`` for later, in this process. Loads nothing by itself.

    Changes nothing where torch is loaded already, is of another version, or is not there.
    """
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _TorchFinder())


def complete_torch() -> None:
    """Have all of torch, as after a plain import, or import it so: for code that is not ours. Loads no torch."""
    _remove_finder()
    for module in list(sys.modules.values()):
        if isinstance(module, LazyModule):
            module.run()


class LazyModule(ModuleType):
    """A module that runs when it is first asked for more than its spec. Safe in any thread."""

    def __getattr__(self, name: str) -> Any:
        if not self.run():
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} yet")
        return getattr(self, name)

    def run(self) -> bool:
        """Run it; False if this thread does so already. What its code raises is raised, and it runs again next time."""
        assert self.__spec__ is not None
        loader = self.__spec__.loader
        assert isinstance(loader, _LazyLoader)
        return loader.run(self)


class _LazyLoader(SourceFileLoader):
    def __init__(self, name: str, path: str) -> None:
        super().__init__(name, path)
        self._lock = RLock()
        self._is_running = False

    def exec_module(self, module: ModuleType) -> None:
        vars(module).pop("__path__", None)  # who imports what is in a package runs that first
        module.__class__ = LazyModule

    def run(self, module: ModuleType) -> bool:
        with self._lock:
            if self._is_running:
                return False
            self._is_running = True
            try:
                if isinstance(module, LazyModule):  # else another thread has run it meanwhile
                    self._run(module)
            finally:
                self._is_running = False
        return True

    def _run(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        places = module.__spec__.submodule_search_locations
        if places is not None:
            module.__path__ = places
        super().exec_module(module)
        module.__class__ = ModuleType


class _TorchFinder(MetaPathFinder):
    """Finds torch and what of it is lazy; it is gone when torch is imported."""

    def __init__(self) -> None:
        self._lazy: frozenset[str] = frozenset()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "torch":
            self._lazy = LAZY if _version().startswith(VERIFIED) else frozenset()
            return _find(_TorchLoader, name, path)
        return _find(_LazyLoader, name, path) if name in self._lazy else None


class _TorchLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        try:
            super().exec_module(module)
        finally:
            _remove_finder()


def _find(loader: type[SourceFileLoader], name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    spec = PathFinder.find_spec(name, path)
    if spec is not None and isinstance(spec.loader, SourceFileLoader):
        spec.loader = loader(name, spec.loader.path)
    return spec


def _remove_finder() -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _TorchFinder)]


def _version() -> str:
    from importlib import metadata  # takes a while, and is for those alone who import torch

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""
