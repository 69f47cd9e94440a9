"""Any two features together are both at work, and answers are those of a plain engine; or one line says why not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from octavo import EngineArgs, LLMEngine, LoRARequest, RequestOutput, SamplingParams
from octavo.engine.client import InprocClient
from octavo.engine.process_client import ProcessClient
from octavo.engine.supervisor import supervised
from octavo.frontend.start import start_front_end
from octavo.words.errors import RequestError
from octavo.words.sampling_params import RequestOutputKind
from tests.drafters import save_noisy_copy
from tests.e2e.pairs import (
    BURSTS,
    DIES_ONCE,
    DRAFT_MODEL,
    MOST_TOKENS,
    NO,
    PAIRS,
    REFUSED,
    SINGLE_STEPS,
    Feature,
    Ran,
    page,
)
from tests.tiny_adapters import save_tiny_adapter
from tests.tiny_models import save_tiny_model

PROMPTS = [[97, 98, 99, 100] * 5 + [97, 98], [99] * 9, list(range(97, 101)) * 8, [100, 97, 98] * 6 + [100]]
Asked = tuple[Any, SamplingParams, LoRARequest | None]
"""A prompt, and what is asked of it."""
CLIENTS = {"InprocClient": InprocClient, "ProcessClient": ProcessClient, "Supervisor": supervised}
EMBEDDING = "model.embed_tokens.weight"
COMMON: dict[str, Any] = {
    "temperature": 0.8,
    "seed": 4,
    "max_tokens": MOST_TOKENS,
    "ignore_eos": True,
    "allowed_token_ids": [97, 98, 99, 100],
    "output_kind": RequestOutputKind.FINAL_ONLY,
}


class Engines:
    """Engines by their features; those of one feature or none are kept, others live as long as they are asked."""

    def __init__(self, options: dict[str, Any], adapter: LoRARequest, draft_model: Path) -> None:
        self._draft_model = str(draft_model)
        self._embedding: npt.NDArray[Any] = load_file(Path(options["model"], "model.safetensors"))[EMBEDDING]
        self._options = options
        self._adapter = adapter
        self._kept: dict[str, LLMEngine] = {}
        self._plain: dict[str, list[Any]] = {}

    def ask(self, features: list[Feature]) -> Ran:
        """Ask the prompts twice, so that there is something in the cache."""
        ways = [feature for feature in features if feature.is_of_engine]
        requests = [self._request(features, number) for number in range(len(PROMPTS))]
        is_kept = len(ways) < 2
        Path(os.environ[DIES_ONCE]).unlink(missing_ok=True)
        name = " + ".join(feature.name for feature in ways)
        engine = self._kept.get(name) or self._start(ways)
        if is_kept:
            self._kept[name] = engine
        try:
            before = counters(engine)
            outputs = [*answers(engine, requests), *answers(engine, requests)]
            counted = {name: value - before.get(name, 0.0) for name, value in counters(engine).items()}
            return Ran(outputs, counted, engine.info, type(engine._client).__name__)
        finally:
            if not is_kept:
                engine.shutdown()

    def plain(self, features: list[Feature], kernels: str = "auto") -> list[Any]:
        """The answers of an engine without any feature but what is asked for."""
        asked = [feature for feature in features if feature.is_asked_for]
        key = " + ".join([kernels, *(feature.name for feature in asked)])
        if key not in self._plain:
            way = Feature(kernels, lambda ran: True, {"kernels": kernels})
            self._plain[key] = said(self.ask([way, *asked]).outputs)
        return self._plain[key]

    def _request(self, features: list[Feature], number: int) -> Asked:
        params = dict(COMMON)
        for feature in features:
            params |= feature.params_of(number)
        prompt: dict[str, Any] = {"prompt_token_ids": PROMPTS[number]}
        if any(feature.gives_embeds for feature in features):
            prompt = {"prompt_embeds": self._embedding[PROMPTS[number]]}
        adapter = self._adapter if any(feature.has_adapter for feature in features) else None
        return prompt, SamplingParams(**params), adapter

    def _start(self, features: list[Feature]) -> LLMEngine:
        options, client = dict(self._options), "InprocClient"
        for feature in features:
            options |= feature.options
            if options.get("speculative_model") == DRAFT_MODEL:
                options["speculative_model"] = self._draft_model
            client = feature.client if feature.client != "InprocClient" else client
        return LLMEngine(*start_front_end(EngineArgs(**options).create_engine_config(), CLIENTS[client]))

    def close(self) -> None:
        for engine in self._kept.values():
            engine.shutdown()


def counters(engine: LLMEngine) -> dict[str, float]:
    counted: dict[str, float] = {}
    for metric in engine.get_metrics():
        counted[metric.name] = counted.get(metric.name, 0.0) + getattr(metric, "value", 0.0)
    if engine.info.plan.max_loras:
        counted["lora rows"] = engine.collective_rpc("adapter_counters")[0].get("rows", 0)
    return counted | engine.collective_rpc("sampler_counters")[0] | engine.collective_rpc("extension.kernel_counts")[0]


def answers(engine: LLMEngine, requests: list[Asked]) -> list[RequestOutput]:
    for number, (prompt, params, adapter) in enumerate(requests):
        engine.add_request(str(number), prompt, params, lora_request=adapter)
    done: dict[str, Any] = {}
    while engine.has_unfinished_requests():
        done |= {output.request_id: output for output in engine.step() if output.finished}
    return [done[str(number)] for number in range(len(PROMPTS))]


def said(outputs: list[RequestOutput]) -> list[Any]:
    return [
        (choice.token_ids, choice.text, choice.finish_reason, [_row(row) for row in choice.logprobs or ()])
        for output in outputs
        for choice in output.outputs
    ]


def _row(row: dict[int, Any]) -> list[tuple[int, float]]:
    return [(token_id, each.logprob) for token_id, each in row.items()]


@pytest.fixture(scope="module")
def engines(succ: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    os.environ[DIES_ONCE] = str(tmp_path_factory.mktemp("died") / "mark")
    folder = save_tiny_model(tmp_path_factory.mktemp("pairs") / "model", "llama")
    engines = Engines(
        {
            "model": str(folder),
            "tokenizer": str(succ),
            "dtype": "float32",
            "max_model_len": 96,
            "block_size": 16,
            "num_gpu_blocks_override": 200,
            "enable_prefix_caching": False,
            "max_burst_ms": 0.0,
            "worker_extension_cls": "tests.e2e.pairs:KernelCounts",
            "num_threads": 1,
            "disable_log_stats": True,
        },
        LoRARequest("adapter", 1, str(save_tiny_adapter(folder.parent / "adapter", folder))),
        save_noisy_copy(folder, tmp_path_factory.mktemp("draft")),
    )
    yield engines
    engines.close()
    del os.environ[DIES_ONCE]


@pytest.mark.parametrize("pair", [name for name in PAIRS if name not in NO])
def test_both_are_at_work_and_answers_are_those_of_a_plain_engine(
    engines: Engines, pair: str, caplog: pytest.LogCaptureFixture
) -> None:
    features = list(PAIRS[pair])
    ran = engines.ask(features)
    assert "Traceback" not in caplog.text  # of a step that failed and was tried again
    assert [feature.name for feature in features if not feature.proof(ran)] == []
    if "native kernels" in pair:
        assert_close(said(ran.outputs), engines.plain(features, "reference"))
    elif ran.info.plan.batch_invariant:
        assert said(ran.outputs) == engines.plain(features)
    else:
        assert_close(said(ran.outputs), engines.plain(features))


@pytest.mark.parametrize("pair", SINGLE_STEPS)
def test_where_something_is_decided_between_steps_they_are_single(engines: Engines, pair: str) -> None:
    other = next(feature for feature in PAIRS[pair] if feature.name != BURSTS)
    ran = engines.ask(list(PAIRS[pair]))
    assert other.proof(ran)
    assert ran.counted["octavo:num_burst_steps"] == 0
    assert said(ran.outputs) == engines.plain([other])


def assert_close(ours: list[Any], theirs: list[Any]) -> None:
    assert [answer[:3] for answer in ours] == [answer[:3] for answer in theirs]
    for (*_, rows), (*_, their_rows) in zip(ours, theirs, strict=True):
        for row, their_row in zip(rows, their_rows, strict=True):
            assert [value for _, value in row] == pytest.approx([value for _, value in their_row], rel=1e-4)


@pytest.mark.parametrize("pair", REFUSED)
def test_what_does_not_go_together_says_so_in_one_line(engines: Engines, pair: str) -> None:
    with pytest.raises(RequestError) as caught:
        engines.ask(list(PAIRS[pair]))
    assert str(caught.value) == REFUSED[pair]


def test_the_page_of_pairs_is_up_to_date() -> None:
    written = Path(__file__).parents[2] / "docs" / "features.md"
    assert written.read_text() == page(), "run make docs"
