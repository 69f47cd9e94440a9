"""Torch, imported sooner: half of ``import torch`` serves compiling, exporting and training, which no engine does.

In a process of our own those modules are there at once, and when one of them is first touched all run, in the order in
which torch imports them. So nothing is missing, only later; one thing is seen to be: operations on the device "meta"
whose shapes are known to Python alone wait for ``complete_torch``. In a process of somebody who uses the library torch
is imported as ever.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
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


def _run_and_call(module: LazyModule, name: str, /, *args: Any, **options: Any) -> Any:
    module.run()
    return vars(module)[name](*args, **options)


def _nothing_is_compiled(module: LazyModule, name: str, /) -> bool:
    return False


STAND_INS: dict[str, dict[str, Callable[..., Any]]] = {
    "torch._higher_order_ops": {"cond": _run_and_call, "while_loop": _run_and_call},
    "torch.compiler": {"is_compiling": _nothing_is_compiled},
    "torch.func": {"vmap": _run_and_call},
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
            finder.run_all()


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
        _loader_of(self).torch.run(self)


class _LazyTorch:
    """Finds what of torch is lazy, and runs that when it is touched.

    While torch is imported, that is one module, and what is in a package can be imported without it. Afterwards it is
    all of them, in the order in which they were found, before anything more of torch is imported: its modules rely on
    their order.
    """

    def __init__(self) -> None:
        self.modules: list[LazyModule] = []
        self._lock = RLock()
        self._running: list[LazyModule] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "torch" and not _version().startswith(VERIFIED):
            self._leave()
        if "torch" not in sys.modules:
            return None
        if _torch_is_being_imported():
            return self._find_lazy(name, path) if name in LAZY else None
        return self._find_more(name) if name.startswith(PACKAGES) else None

    def run(self, touched: LazyModule) -> None:
        """Run what is touched, and what is due with it."""
        with self._lock:
            if self._running or _torch_is_being_imported():
                self._run(touched)
            else:
                self.run_all()

    def run_all(self) -> None:
        """Leave nothing for later."""
        with self._lock:
            for module in self.modules:
                self._run(module)
            if not any(isinstance(module, LazyModule) for module in self.modules):
                self._leave()

    def _find_lazy(self, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _LazyLoader(name, spec.loader.path, self)
        return spec

    def _find_more(self, name: str) -> ModuleSpec | None:
        if not self._lock.acquire(blocking=False):  # else two imports could wait for each other
            return None
        try:
            if self._running:
                return None
            self.run_all()
        finally:
            self._lock.release()
        if name not in sys.modules:
            return None
        return ModuleSpec(name, cast("Loader", _Imported(sys.modules[name])))

    def _run(self, module: LazyModule) -> None:
        if not isinstance(module, LazyModule) or module in self._running:
            return
        self._running.append(module)
        try:
            _loader_of(module).run(module)
        finally:
            self._running.remove(module)

    def _leave(self) -> None:
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]


class _LazyLoader(SourceFileLoader):
    def __init__(self, name: str, path: str, torch: _LazyTorch) -> None:
        super().__init__(name, path)
        self.torch = torch

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = LazyModule
        assert isinstance(module, LazyModule)
        for name, stand_in in STAND_INS.get(module.__name__, {}).items():
            setattr(module, name, partial(stand_in, module, name))
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


def _loader_of(module: LazyModule) -> _LazyLoader:
    assert module.__spec__ is not None and isinstance(module.__spec__.loader, _LazyLoader)
    return module.__spec__.loader


def _torch_is_being_imported() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(getattr(torch.__spec__, "_initializing", False))  # as importlib itself asks


def _version() -> str:
    from importlib import metadata  # takes a while, and is for those alone who import torch

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""
