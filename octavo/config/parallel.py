"""Processes and workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from octavo.config.fields import Option


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """What the user asked about processes and workers."""

    distributed_executor_backend: Annotated[
        str,
        Option(
            "How workers are run: uni = in the core's process; simulated = no model, for scheduler studies.",
            choices=("uni", "simulated"),
        ),
    ] = "uni"
    tensor_parallel_size: Annotated[
        int, Option("Workers that share each layer: one so far.", at_least=1, at_most=1)
    ] = 1
    pipeline_parallel_size: Annotated[
        int, Option("Workers that have some of the layers each: one so far.", at_least=1, at_most=1)
    ] = 1
    worker_cls: Annotated[str | None, Option('Worker class as "module:Class" in place of the built-in one.')] = None
    worker_extension_cls: Annotated[
        str | None,
        Option('Class as "module:Class" whose methods collective_rpc can call as extension.NAME.'),
    ] = None
    num_threads: Annotated[
        int | None, Option("Compute threads (default: the CPUs we may use).", at_least=1, at_most=1024)
    ] = None
    device: Annotated[str, Option("Device to run on.", choices=("auto", "cpu"))] = "auto"
    kernels: Annotated[
        str,
        Option(
            "Who computes the ops: native = the compiled library; reference = plain torch; auto = native where it is.",
            choices=("auto", "native", "reference"),
        ),
    ] = "auto"
    cpu_isa: Annotated[
        str,
        Option(
            "Instruction set of the native CPU kernels: auto = the highest this CPU has.",
            choices=("auto", "generic", "avx2", "avx512", "amx"),
        ),
    ] = "auto"
