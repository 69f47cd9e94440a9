from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from octavo.checkpoint.facts import read_model_facts
from octavo.checkpoint.resolve import resolve_model
from octavo.config.cache import CacheConfig
from octavo.config.engine_config import EngineConfig
from octavo.config.model import ModelConfig
from octavo.config.parallel import ParallelConfig
from octavo.device.platform.detect import detect_caps
from octavo.device.worker.build import build_worker
from octavo.device.worker.dummy import dummy_kv_cache_config
from octavo.device.worker.memory import parameter_bytes
from octavo.device.worker.worker import Worker
from octavo.plan.planner import make_plan
from octavo.words.errors import ConfigError, InsufficientMemoryError, UnsupportedError
from octavo.words.messages import NewRequestData, ResolvedSampling, SchedulerOutput
from octavo.words.sampling_params import SamplingParams
from tests.succ import NUM_TEXT_TOKENS, VOCAB_SIZE
from tests.waiting import soon

MIB = 1 << 20


def make_worker(
    succ: Path, *, cache: dict[str, Any] | None = None, parallel: dict[str, Any] | None = None, **plan_changes: Any
) -> Worker:
    config = EngineConfig(
        model=ModelConfig(model=str(succ), dtype="float32"),
        cache=CacheConfig(**(cache or {})),
        parallel=ParallelConfig(**(parallel or {})),
    )
    checkpoint = resolve_model(str(succ))
    facts = read_model_facts(checkpoint)
    plan = make_plan(config, facts, detect_caps("cpu"))
    worker: Worker = build_worker(config, msgspec.structs.replace(plan, **plan_changes), facts, checkpoint)
    worker.init_device()
    worker.load_model()
    return worker


def ready_worker(succ: Path, **options: Any) -> Worker:
    worker = make_worker(succ, **options)
    worker.initialize_from_config(dummy_kv_cache_config(worker.get_kv_cache_specs(), {}, 256, 512))
    worker.warm_up()
    return worker


def prompt_step(prompt: str) -> SchedulerOutput:
    sampling = ResolvedSampling(
        params=SamplingParams(temperature=0.0), seed=0, max_tokens=1, num_text_tokens=NUM_TEXT_TOKENS
    )
    new = NewRequestData(
        request_id="r",
        prompt_token_ids=[ord(character) for character in prompt],
        output_token_ids=[],
        sampling=sampling,
        block_ids=([1],),
        num_computed_tokens=0,
    )
    return SchedulerOutput(step_id=3, new_requests=[new], num_scheduled_tokens={"r": len(prompt)})


def test_a_worker_answers_a_prompt_in_two_phases(succ: Path) -> None:
    worker = ready_worker(succ)
    handle = worker.execute(prompt_step("HELLO"))
    result = worker.sample(handle)
    assert result.sampled_token_ids == [[ord("P")]]
    assert result.step_id == 3


def test_each_layer_states_its_need_and_the_backend_its_sizes(succ: Path) -> None:
    worker = make_worker(succ)
    specs = worker.get_kv_cache_specs()
    assert len(specs) == 2
    assert {spec.page_bytes for spec in specs.values()} == {2 * 32 * 2 * 32 * 4}
    assert worker.shared_layers() == {}
    assert 32 in worker.preferred_block_sizes()


def test_kv_memory_in_bytes_is_taken_verbatim(succ: Path) -> None:
    assert make_worker(succ, cache={"kv_cache_memory_bytes": 5 * MIB}).determine_available_memory() == 5 * MIB


def test_kv_memory_as_a_share_leaves_room_for_weights_and_the_largest_step(succ: Path) -> None:
    caps = detect_caps("cpu")
    # Half of what is free, so that the share is what decides.
    fraction = 0.5 * caps.available_bytes / caps.total_bytes
    small = make_worker(succ, memory_fraction=fraction, kv_cache_bytes=None, max_num_batched_tokens=256)
    large = make_worker(succ, memory_fraction=fraction, kv_cache_bytes=None, max_num_batched_tokens=16384)
    share = int(fraction * caps.total_bytes)
    left_small, left_large = small.determine_available_memory(), large.determine_available_memory()
    assert share // 2 < left_large < left_small < share - parameter_bytes(small.model)
    # 16384 tokens of 320 float32 numbers, several times.
    assert left_small - left_large > 16384 * VOCAB_SIZE * 4


def test_kv_memory_as_a_share_leaves_room_for_adapters(succ: Path) -> None:
    caps = detect_caps("cpu")
    share: dict[str, Any] = {"memory_fraction": 0.5 * caps.available_bytes / caps.total_bytes, "kv_cache_bytes": None}
    without, beside = (make_worker(succ, adapter_bytes=each, **share) for each in (0, 5 * MIB))
    assert without.determine_available_memory() - beside.determine_available_memory() == 5 * MIB
    with pytest.raises(
        InsufficientMemoryError, match=r"0 B of KV cache and 1048576.00 GiB for LoRA adapters are asked"
    ):
        make_worker(succ, adapter_bytes=1 << 50, **share)


def test_kv_memory_is_never_more_than_is_free(succ: Path) -> None:
    worker = make_worker(succ, memory_fraction=100.0, kv_cache_bytes=None)
    assert worker.determine_available_memory() < detect_caps("cpu").total_bytes


def test_a_share_that_not_even_the_weights_fit_in_is_refused_with_the_numbers(succ: Path) -> None:
    worker = make_worker(succ, memory_fraction=1e-9, kv_cache_bytes=None)
    with pytest.raises(InsufficientMemoryError, match="gpu_memory_utilization") as caught:
        worker.determine_available_memory()
    assert caught.value.needed_bytes > parameter_bytes(worker.model)


def test_more_kv_memory_than_there_is_is_refused_at_once(succ: Path) -> None:
    with pytest.raises(InsufficientMemoryError, match="kv_cache_memory_bytes"):
        make_worker(succ, kv_cache_bytes=1 << 50)


@pytest.mark.parametrize(("kernels", "attention"), [("reference", "reference"), ("native", "cpu")])
def test_steps_use_the_plans_threads_and_the_process_keeps_its_own(succ: Path, kernels: str, attention: str) -> None:
    """Native kernels have threads of their own, beside which torch's would be too many."""
    if kernels == "native":
        pytest.importorskip("octavo._native", reason="built without the native module")
    before = torch.get_num_threads()
    seen: list[int] = []
    backends = {"kernels": kernels, "attention_backend": attention, "graph_capture": False}
    worker = ready_worker(succ, num_threads=before + 1, **backends)
    worker.model.register_forward_pre_hook(lambda *_: seen.append(torch.get_num_threads()))
    worker.sample(worker.execute(prompt_step("A")))
    assert seen == [before + 1 if kernels == "reference" else 1]
    assert torch.get_num_threads() == before
    assert not torch.is_inference_mode_enabled()


def affinities_of_new_threads(succ: Path, pinned_cpus: tuple[int, ...]) -> list[set[int]]:
    """Of the CPUs that threads may use which a worker with two compute threads starts."""
    tasks = Path("/proc/self/task")
    before = {task.name for task in tasks.iterdir()}
    worker = make_worker(succ, kernels="native", attention_backend="cpu", num_threads=2, pinned_cpus=pinned_cpus)
    found = [os.sched_getaffinity(int(task.name)) for task in tasks.iterdir() if task.name not in before]
    assert worker.seconds_in_kernels() is not None
    return found


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no /proc on this system")
def test_compute_threads_stay_on_a_cpu_only_where_the_plan_says_so(succ: Path) -> None:
    pytest.importorskip("octavo._native", reason="built without the native module")
    usable = os.sched_getaffinity(0)
    cpus = tuple(sorted(usable))[:2]
    if len(cpus) < 2:
        pytest.skip("one CPU only")
    free = affinities_of_new_threads(succ, ())
    assert free and all(affinity == usable for affinity in free)
    assert soon(lambda: {cpus[1]} in affinities_of_new_threads(succ, cpus), seconds=20)


class Extension:
    """Composed with the worker, in a namespace of its own."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def shutdown(self) -> str:
        return "mine"

    def num_parameters(self, factor: int) -> int:
        return factor * sum(1 for _ in self.worker.model.parameters())


class LoudWorker(Worker):
    """A user's worker."""

    def shout(self, text: str) -> str:
        return text.upper()


def test_collective_rpc_reaches_public_methods_by_name(succ: Path) -> None:
    worker = make_worker(succ)
    assert worker.collective_rpc("shared_layers") == {}
    assert worker.collective_rpc("check_health") is None


@pytest.mark.parametrize("name", ["nonsense", "_threads", "__init__", "model", "model.forward", "extension.shutdown"])
def test_collective_rpc_refuses_every_other_name_and_lists_those_there_are(succ: Path, name: str) -> None:
    with pytest.raises(UnsupportedError, match="there are .*determine_available_memory"):
        make_worker(succ).collective_rpc(name)


def test_an_extension_lives_in_its_own_namespace(succ: Path) -> None:
    worker = make_worker(succ, parallel={"worker_extension_cls": f"{__name__}:Extension"})
    assert worker.collective_rpc("extension.shutdown") == "mine"
    assert worker.collective_rpc("extension.num_parameters", 2) == 2 * len(list(worker.model.parameters()))
    with pytest.raises(UnsupportedError, match="extension.num_parameters"):
        worker.collective_rpc("num_parameters", 2)


def test_the_worker_class_can_be_the_users(succ: Path) -> None:
    worker = make_worker(succ, parallel={"worker_cls": f"{__name__}:LoudWorker"})
    assert worker.collective_rpc("shout", "quiet") == "QUIET"


@pytest.mark.parametrize("name", ["no_such_module:Class", "octavo.device.worker.worker:Nobody", "Worker"])
@pytest.mark.parametrize("option", ["worker_cls", "worker_extension_cls"])
def test_a_class_that_is_not_there_is_an_error_naming_the_option(succ: Path, option: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{option}='{name}'"):
        make_worker(succ, parallel={option: name})


def test_shutdown_twice_is_fine_and_lets_go_of_the_model(succ: Path) -> None:
    worker = ready_worker(succ)
    worker.shutdown()
    worker.shutdown()
    assert not hasattr(worker, "model")
