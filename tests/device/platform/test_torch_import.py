"""What is lazy of torch is only later: a made-up torch shows the rules, the real one that they hold for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.config.env import child_variables
from octavo.device.platform.torch_import import LAZY, VERIFIED
from tests.fresh_python import run

ARMED = """
import sys, threading
from octavo.device.platform.torch_import import LazyModule, complete_torch, import_torch_lazily
import_torch_lazily()
def is_lazy(name): return isinstance(sys.modules[name], LazyModule)
"""

ENGINE = """
import json, sys
from octavo import LLM, SamplingParams
from octavo.device.platform.torch_import import LAZY, LazyModule, import_torch_lazily

def num_lazy(): return sum(isinstance(module, LazyModule) for module in sys.modules.values())

def answers(**options):
    with LLM(sys.argv[1], **options) as llm:
        output, = llm.generate([[1, 5, 9]], SamplingParams(max_tokens=4, temperature=0.0), use_tqdm=False)
    return list(output.outputs[0].token_ids), num_lazy()

if sys.argv[2] == "lazy":
    import_torch_lazily()
tokens, lazy = answers()
if lazy:
    answers(worker_extension_cls="tests.engine.counting_extension:CountingExtension")

import torch
x = torch.ones(3, 3, device="meta")
print(json.dumps({
    "lazy": [lazy, num_lazy()],
    "tokens": tokens,
    "meta": list(torch.cdist(x, torch.fft.fft(x).real).shape),
    "exports": [sorted(vars(module)) for module in (torch, torch.export, torch.fx, torch.compiler, torch.utils.data)],
    "functions": [torch.vmap is torch.func.vmap, torch.cond.__module__, torch.compiler.is_compiling.__module__],
    "decompositions": sorted(map(str, torch._decomp.decomposition_table)),
    "modules": sorted(name for name in sys.modules if name in LAZY or name.startswith("torch._decomp")),
}))
"""


@pytest.fixture
def made_up_torch(tmp_path: Path) -> Path:
    """A folder with a package ``torch`` of a verified version, one lazy package in it, and one that is not lazy."""
    for name, text in {
        "torch-0.dist-info/METADATA": f"Name: torch\nVersion: {VERIFIED[-1]}0\n",
        "torch/__init__.py": "from torch import export as export, nn as nn\n",
        "torch/export/__init__.py": "print('runs')\nfrom torch.export import inner\nexported = 1\n",
        "torch/export/inner.py": "import sys\nassert 'inner' not in vars(sys.modules['torch.export'])\nvalue = 2\n",
        "torch/more.py": "import sys\nassert sys.modules['torch'].export.exported == 1\nvalue = 3\n",
        "torch/nn.py": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    "touch",
    [
        "assert sys.modules['torch'].export.exported == 1",
        "from torch.export import exported",
        "import torch.export.inner; assert torch.export.inner.value == 2",
        "from torch.export.inner import value; assert value == 2",
        "from torch import more; assert more.value == 3",
        "complete_torch()",
    ],
)
def test_a_lazy_module_runs_once_when_it_is_first_touched(made_up_torch: Path, touch: str) -> None:
    script = (
        f"{ARMED}import torch\nprint(is_lazy('torch.export'), type(torch.nn))\n{touch}\nprint(is_lazy('torch.export'))"
    )
    script += "\nfrom torch import export\nassert export.exported == 1 and export.__path__"
    assert run(script, first_path=made_up_torch) == ["True <class 'module'>", "runs", "False"]


def test_all_lazy_modules_run_in_the_order_in_which_torch_imports_them(made_up_torch: Path) -> None:
    (made_up_torch / "torch/__init__.py").write_text("from torch import optim, export, hub\n")
    (made_up_torch / "torch/optim.py").write_text("print('optim'); from torch.hub import found\n")
    (made_up_torch / "torch/hub.py").write_text("found = 1; print('hub')\n")
    script = f"{ARMED}import torch\nprint('imported')\ntorch.export.exported\nprint(is_lazy('torch.optim'))"
    assert run(script, first_path=made_up_torch) == ["imported", "optim", "hub", "runs", "False"]


def test_a_function_that_torch_takes_out_of_a_lazy_module_runs_it_when_called(made_up_torch: Path) -> None:
    (made_up_torch / "torch/__init__.py").write_text("from torch.func import vmap\nfrom torch import compiler\n")
    (made_up_torch / "torch/func.py").write_text("print('runs')\ndef vmap(*, x): return x + 1\n")
    (made_up_torch / "torch/compiler.py").write_text("def is_compiling(): return 'asked'\n")
    script = f"{ARMED}import torch\nprint(torch.compiler.is_compiling(), is_lazy('torch.func'), torch.vmap(x=2))"
    script += "\nprint(torch.vmap is torch.func.vmap, torch.compiler.is_compiling())"
    assert run(script, first_path=made_up_torch) == ["runs", "False True 3", "True asked"]


def test_threads_that_touch_it_together_run_it_once(made_up_torch: Path) -> None:
    lazy = made_up_torch / "torch/export/__init__.py"
    lazy.write_text("import time\ntime.sleep(0.2)\n" + lazy.read_text())
    script = (
        f"{ARMED}import torch\n"
        "found = []\n"
        "def touch(): found.append(torch.export.exported)\n"
        "threads = [threading.Thread(target=touch) for _ in range(4)]\n"
        "for each in threads: each.start()\n"
        "for each in threads: each.join()\n"
        "print(found)"
    )
    assert run(script, first_path=made_up_torch) == ["runs", "[1, 1, 1, 1]"]


def test_what_its_code_raises_is_raised_each_time(made_up_torch: Path) -> None:
    (made_up_torch / "torch/export/__init__.py").write_text("raise ImportError('broken')\n")
    touch = "\ntry: torch.export.exported\nexcept ImportError as error: print(error)"
    assert run(f"{ARMED}import torch{touch}{touch}", first_path=made_up_torch) == ["broken", "broken"]


def test_a_name_that_it_lacks_is_an_attribute_error(made_up_torch: Path) -> None:
    script = f"{ARMED}import torch\nprint(hasattr(torch.export, 'no_such_name'), hasattr(torch.export, 'exported'))"
    assert run(script, first_path=made_up_torch) == ["runs", "False True"]


def test_another_version_of_torch_is_imported_as_ever(made_up_torch: Path) -> None:
    (made_up_torch / "torch-0.dist-info/METADATA").write_text("Name: torch\nVersion: 2.1.0\n")
    assert run(f"{ARMED}import torch\nprint(is_lazy('torch.export'))", first_path=made_up_torch) == ["runs", "False"]


def test_nothing_is_lazy_before_torch_is_asked_for_nor_once_all_has_run(made_up_torch: Path) -> None:
    finders = "[each for each in sys.meta_path if type(each).__module__.startswith('octavo.')]"
    script = f"{ARMED}import torch\ncomplete_torch()\nprint(len({finders}))"
    assert run(script, first_path=made_up_torch) == ["runs", "0"]
    script = f"{ARMED}complete_torch()\nimport torch"
    assert run(script, first_path=made_up_torch) == ["runs"]


def test_torch_is_whole_after_its_lazy_import_and_untouched_in_the_process_of_a_user(succ: Path) -> None:
    lazily, plainly = (engine_with_torch(succ, how) for how in ("lazy", "plain"))
    assert lazily.pop("lazy") == [len(LAZY), 0]
    assert plainly.pop("lazy") == [0, 0]
    assert lazily == plainly


def engine_with_torch(model: Path, how: str) -> dict[str, Any]:
    *_, last = run(ENGINE, str(model), how)
    found: dict[str, Any] = json.loads(last)
    return found


@pytest.mark.parametrize(
    "touch",
    [
        "str(torch.ones(2))",
        "from torch.fx.experimental.proxy_tensor import make_fx; make_fx(torch.sin)(torch.ones(2))",
    ],
)
def test_what_relies_on_the_order_of_torchs_modules_finds_them_in_order(touch: str) -> None:
    script = f"{ARMED}import torch\nprint(is_lazy('torch.fx'))\n{touch}\nprint(is_lazy('torch.fx'))"
    assert run(script) == ["True", "False"]


@pytest.mark.parametrize("multiprocess", [False, True], ids=["the command", "a core process"])
def test_processes_of_our_own_leave_the_lazy_modules_alone(succ: Path, multiprocess: bool) -> None:
    script = (
        f"from octavo import LLM\nLLM({str(succ)!r}, multiprocess=True).close()"
        if multiprocess
        else f"from octavo.cli.main import main\nassert main(['generate', {str(succ)!r}, '--prompt', 'a']) == 0"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        env=child_variables(PYTHONPROFILEIMPORTTIME="1"),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
    assert {"torch", "torch.nn.functional"} <= imported
    assert (
        not {"torch._decomp.decompositions", "torch.export.exported_program", "torch.fx.graph", "torch.optim.adam"}
        & imported
    )
