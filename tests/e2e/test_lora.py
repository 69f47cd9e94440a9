"""An adapter answers as the model with it merged in, and among other requests exactly as it does alone."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo import LLM, AsyncLLM, EngineArgs, LoRARequest, RequestOutput, SamplingParams, StructuredOutputParams
from octavo.checkpoint.adapter import projection_shapes
from octavo.engine.supervisor import Supervisor
from octavo.frontend.adapters import AdapterFolders
from octavo.words.beam_search import BeamSearchParams
from octavo.words.errors import ConfigError, RequestError
from octavo.words.sampling_params import RequestOutputKind
from tests.tiny_adapters import save_adapter_of_shapes, save_merged, save_tiny_adapter
from tests.tiny_models import VOCAB_SIZE, oracle, oracle_logits, save_tiny_model

PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=3, detokenize=False)
PEFT_ADAPTER = Path(__file__).parents[1] / "peft_adapter"
PROMPT = [(7 * i) % 300 + 3 for i in range(44)]


def options_of(model: Path, tokenizer: Path, **more: Any) -> dict[str, Any]:
    common = {"max_model_len": 128, "dtype": "float32", "block_size": 16, "enable_lora": True, "max_loras": 2}
    return {"model": str(model), "tokenizer": str(tokenizer), **common, **more}


def said(output: RequestOutput) -> Any:
    """Everything that a caller sees of an answer, numbers and all."""
    (choice,) = output.outputs
    assert choice.error is None
    return choice.token_ids, [{token: each.logprob for token, each in row.items()} for row in choice.logprobs or ()]


def ask(llm: LLM, adapters: Sequence[LoRARequest | None], prompt: Sequence[int] = PROMPT, **params: Any) -> list[Any]:
    """What is said to the same prompt with each of the adapters, all at once."""
    prompts = [{"prompt_token_ids": list(prompt)} for _ in adapters]
    outputs = llm.generate(prompts, PARAMS.clone(**params), use_tqdm=False, lora_request=adapters)
    return [said(output) for output in outputs]


def counters(llm: LLM) -> dict[str, int]:
    (found,) = llm.collective_rpc("adapter_counters")
    return dict(found)


@pytest.fixture(scope="module")
def llama(succ: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_tiny_model(tmp_path_factory.mktemp("lora") / "llama", "llama")
    for file in succ.glob("tokenizer*.json"):  # which grammars need
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture(scope="module")
def adapters(llama: Path) -> list[LoRARequest]:
    """Different ranks and projections."""
    given: list[dict[str, Any]] = [
        {"rank": 4},
        {"rank": 9, "use_rslora": True},
        {"rank": 16, "modules": ("q_proj", "v_proj"), "size": 0.4},
        {"rank": 3, "modules": ("up_proj", "o_proj", "k_proj"), "size": 0.4},
    ]
    folders = [save_tiny_adapter(llama.parent / f"adapter{i}", llama, seed=i, **more) for i, more in enumerate(given)]
    return [LoRARequest(folder.name, i + 1, str(folder)) for i, folder in enumerate(folders)]


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3"])
@pytest.mark.parametrize("kernels", ["native", "reference"])
@pytest.mark.parametrize(("rank", "size"), [(6, 0.07), (256, 0.03)])
def test_logits_are_those_of_the_merged_weights(
    architecture: str, kernels: str, rank: int, size: float, succ: Path, tmp_path: Path
) -> None:
    """But for one number per row, which logprobs do not have."""
    if kernels == "native":
        pytest.importorskip("octavo._native", reason="built without the native module")
    model = save_tiny_model(tmp_path / "model", architecture)
    is_rslora = architecture == "qwen2"
    alpha = math.sqrt(rank) if is_rslora else rank
    adapter = save_tiny_adapter(tmp_path / "adapter", model, rank=rank, alpha=alpha, size=size, use_rslora=is_rslora)
    merged = oracle(save_merged(tmp_path / "merged", model, adapter))
    with LLM(**options_of(model, succ, kernels=kernels, max_logprobs=-1, max_lora_rank=rank)) as llm:
        (output,) = llm.generate(
            [{"prompt_token_ids": PROMPT}],
            SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=-1, detokenize=False),
            use_tqdm=False,
            lora_request=LoRARequest("adapter", 1, str(adapter)),
        )
        assert counters(llm)["rows"] >= len(PROMPT)
    expected, plain = (oracle_logits(each, PROMPT).log_softmax(-1) for each in (merged, oracle(model)))
    assert output.prompt_logprobs is not None
    rows = [row for row in output.prompt_logprobs if row is not None]
    got = torch.tensor([[row[token].logprob for token in range(VOCAB_SIZE)] for row in rows])
    assert (plain - expected).abs().max() > 1.0
    torch.testing.assert_close(got, expected[:-1], rtol=0.0, atol=1e-4)


@pytest.mark.parametrize("kernels", ["native", "reference"])
def test_an_adapter_that_peft_wrote_answers_as_peft_does(llama: Path, succ: Path, kernels: str) -> None:
    """Ranks and alphas of single modules, which its files have, are read as PEFT means them."""
    if kernels == "native":
        pytest.importorskip("octavo._native", reason="built without the native module")
    expected = json.loads((PEFT_ADAPTER / "answers.json").read_text())
    prompt, greedy, logits = expected["prompt"], expected["greedy"], torch.tensor(expected["logits"])
    with LLM(**options_of(llama, succ, kernels=kernels, max_logprobs=-1)) as llm:
        ((plain, _),) = ask(llm, [None], prompt, max_tokens=len(greedy))
        ((ids, rows),) = ask(llm, [_named(PEFT_ADAPTER)], prompt, max_tokens=len(greedy), logprobs=-1)
        assert counters(llm)["loads"] == 1
    assert ids == greedy != plain
    got = torch.tensor([rows[0][token] for token in range(VOCAB_SIZE)])
    torch.testing.assert_close(got, logits.log_softmax(-1), rtol=0.0, atol=1e-4)


def test_ranks_end_at_256(llama: Path, succ: Path) -> None:
    with pytest.raises(ConfigError, match="max_lora_rank.*257.*256") as caught:
        LLM(**options_of(llama, succ, max_lora_rank=257))
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def alone(llama: Path, adapters: list[LoRARequest], succ: Path) -> list[Any]:
    """What is said without an adapter, by an engine that knows none, and with each: every request alone, op by op."""
    pytest.importorskip("octavo._native", reason="built without the native module")
    eager = {"enforce_eager": True, "enable_prefix_caching": False}
    with LLM(**options_of(llama, succ, **eager, enable_lora=False)) as llm:
        (plain,) = ask(llm, [None])
    with LLM(**options_of(llama, succ, **eager)) as llm:
        answers = [plain, *(ask(llm, [adapter])[0] for adapter in adapters)]
    assert len({str(tokens) for tokens, _ in answers}) == len(answers)
    return answers


CROWDED = {"max_num_batched_tokens": 32, "max_num_seqs": 8}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"enforce_eager": True},
        CROWDED,
        {**CROWDED, "num_gpu_blocks_override": 12},
        {"enable_prefix_caching": False, "num_threads": 1},
        {"speculative_method": "ngram", "prompt_lookup_min": 1},
        {"scheduling_policy": "priority"},
    ],
    ids=lambda given: ",".join(given) or "default",
)
def test_in_a_mixed_batch_each_answers_as_alone_to_the_bit(
    llama: Path, adapters: list[LoRARequest], succ: Path, alone: list[Any], given: dict[str, Any]
) -> None:
    order = [0, 1, 2, 3, 4, 0, 4, 2, 2, 1]
    asked = [None if index == 0 else adapters[index - 1] for index in order]
    with LLM(**options_of(llama, succ, max_loras=4, **given)) as llm:
        assert ask(llm, asked) == [alone[index] for index in order]
        found = counters(llm)
        assert found["slot_entries"] == found["loads"] == len(adapters)
        metrics = {each.name: each.value for each in llm.get_metrics()}
        (graph,) = llm.collective_rpc("graph_counters")
    assert found["rows"] >= 8 * len(PROMPT) // 2
    assert (graph["replays"] > 0) != given.get("enforce_eager", False)
    assert (metrics["vllm:num_preemptions"] > 0) == ("num_gpu_blocks_override" in given)


def test_more_adapters_than_slots_wait_for_each_other_and_the_least_recently_used_are_dropped(
    llama: Path, adapters: list[LoRARequest], succ: Path, alone: list[Any]
) -> None:
    order = [1, 0, 2, 3, 0, 4, 1, 2, 3, 4]
    asked = [None if index == 0 else adapters[index - 1] for index in order]
    with LLM(**options_of(llama, succ, max_loras=1, max_cpu_loras=2)) as llm:
        for _ in range(2):
            assert ask(llm, asked) == [alone[index] for index in order]
        found = counters(llm)
        assert found["slot_evictions"] > 0 and found["memory_evictions"] > 0
        assert found["loads"] > len(adapters)


def test_a_request_keeps_its_adapter_when_its_core_dies(
    llama: Path, adapters: list[LoRARequest], succ: Path, alone: list[Any]
) -> None:
    given = {**options_of(llama, succ, max_loras=4), "max_burst_ms": 0.0}  # so that there are many steps to die in
    params = PARAMS.clone(max_tokens=60)
    with LLM(**given) as llm:
        expected = ask(llm, [None, *adapters], max_tokens=60)
    assert [tokens[:8] for tokens, _ in expected] == [tokens for tokens, _ in alone]
    engine = AsyncLLM.from_engine_args(EngineArgs(given.pop("model"), **given))
    supervisor = engine.client
    assert isinstance(supervisor, Supervisor)
    first_pid = supervisor.pid

    async def answer(adapter: LoRARequest | None) -> Any:
        num_outputs = 0
        async for output in engine.generate(
            {"prompt_token_ids": PROMPT}, params.clone(output_kind=RequestOutputKind.CUMULATIVE), lora_request=adapter
        ):
            num_outputs += 1
            if adapter is adapters[0] and num_outputs == 5:
                os.kill(first_pid, signal.SIGKILL)
            last = output
        return said(last)

    async def run() -> list[Any]:
        return list(await asyncio.wait_for(asyncio.gather(*map(answer, [None, *adapters])), 60))

    try:
        assert asyncio.run(run()) == expected
        assert supervisor.pid != first_pid
        assert (supervisor.stats.restarts, supervisor.stats.convictions) == (1, 0)
        assert supervisor.stats.replays >= 1
    finally:
        engine.shutdown()


def num_hits(llm: LLM) -> float:
    return sum(each.value for each in llm.get_metrics() if each.name == "vllm:prefix_cache_hits")


def test_what_is_cached_for_one_adapter_serves_no_other(
    llama: Path, adapters: list[LoRARequest], succ: Path, alone: list[Any]
) -> None:
    """LO02: the base model, one adapter, another under the same name, and both again."""
    same_name = LoRARequest(adapters[0].lora_name, 9, adapters[1].lora_path)
    with LLM(**options_of(llama, succ)) as llm:
        for index, adapter in ((0, None), (1, adapters[0]), (2, same_name)):
            assert ask(llm, [adapter]) == [alone[index]]
            assert num_hits(llm) == 0
        for index, adapter in ((0, None), (1, adapters[0]), (2, adapters[1])):
            before = num_hits(llm)
            assert ask(llm, [adapter]) == [alone[index]]
            assert num_hits(llm) == before + 32


def test_an_adapter_that_was_changed_under_its_name_is_another_one(llama: Path, succ: Path, tmp_path: Path) -> None:
    adapter = LoRARequest("mine", 1, str(tmp_path / "mine"))
    answers = []
    with LLM(**options_of(llama, succ)) as llm:
        for seed in (5, 6, 5):
            save_tiny_adapter(Path(adapter.lora_path), llama, seed=seed)
            answers += ask(llm, [adapter])
        assert num_hits(llm) == 32  # of the first contents, come back
    assert answers[0] == answers[2] != answers[1]


def test_a_background_process_answers_the_same(
    llama: Path, adapters: list[LoRARequest], succ: Path, alone: list[Any]
) -> None:
    with LLM(**options_of(llama, succ, max_loras=4), multiprocess=True) as llm:
        assert ask(llm, [None, *adapters]) == alone
        with pytest.raises(RequestError, match="adapter 'no': .*adapter_config.json"):
            ask(llm, [LoRARequest("no", 1, "/nonexistent")])
        assert ask(llm, [adapters[3]]) == alone[4:]


def test_an_engine_without_lora_refuses_adapters(llama: Path, adapters: list[LoRARequest], succ: Path) -> None:
    with LLM(**options_of(llama, succ, enable_lora=False)) as llm:
        with pytest.raises(RequestError, match="enable_lora"):
            ask(llm, adapters[:1])
        with pytest.raises(RequestError, match=r"prompts\[1\]: .*enable_lora"):
            ask(llm, [None, adapters[0]])


def test_an_adapter_whose_files_go_bad_after_the_request_ends_that_request_alone(
    llama: Path, adapters: list[LoRARequest], succ: Path, alone: list[Any], tmp_path: Path
) -> None:
    folder = save_tiny_adapter(tmp_path / "bad", llama, seed=7)
    with LLM(**options_of(llama, succ)) as llm:
        prepared = llm._engine.prepare("0", {"prompt_token_ids": PROMPT}, PARAMS, lora_request=_named(folder))
        save_tiny_adapter(folder, llama, seed=8)
        (output,) = llm._answer([prepared], False)
        assert (output.outputs[0].finish_reason, output.outputs[0].is_refused) == ("error", True)
        assert "adapter 'bad': " in output.outputs[0].error
        assert "adapter_model.safetensors: was changed" in output.outputs[0].error
        assert ask(llm, [None, adapters[0]]) == alone[:2]


def _named(folder: Path) -> LoRARequest:
    return LoRARequest(folder.name, 1, str(folder))


@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_in_bfloat16_a_mixed_batch_answers_as_each_alone(
    llama: Path, adapters: list[LoRARequest], succ: Path, dtype: str
) -> None:
    pytest.importorskip("octavo._native", reason="built without the native module")
    options = options_of(llama, succ, max_loras=4, enable_prefix_caching=False, **{"dtype": dtype})
    with LLM(**options) as llm:
        mixed = ask(llm, [None, *adapters])
        assert mixed == [ask(llm, [adapter])[0] for adapter in [None, *adapters]]
    with LLM(**{**options, "enable_lora": False}) as llm:
        assert ask(llm, [None]) == mixed[:1]


def test_weights_in_gguf_blocks_take_adapters(smollm2: str, tmp_path: Path) -> None:
    pytest.importorskip("octavo._native", reason="built without the native module")
    common: dict[str, Any] = {"model": smollm2, "max_model_len": 128, "enable_prefix_caching": False}
    with LLM(**common) as llm:
        assert llm.info.plan.quantization == "gguf"
        (plain,) = ask(llm, [None], max_tokens=4)
    with LLM(**common, enable_lora=True, max_loras=2) as llm:
        shapes = projection_shapes(llm.info.facts)
        folders = [save_adapter_of_shapes(tmp_path / str(seed), shapes, seed=seed) for seed in range(2)]
        asked = [None, *map(_named, folders)]
        alone = [ask(llm, [adapter], max_tokens=4)[0] for adapter in asked]
        assert alone[0] == plain
        assert len({str(each) for each in alone}) == 3
        assert ask(llm, asked * 2, max_tokens=4) == alone * 2


@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 1.1, "seed": 5, "n": 3, "top_p": 0.9},
        {"structured_outputs": StructuredOutputParams(regex="[a-f]{3,9}"), "ignore_eos": False, "max_tokens": 20},
        {"prompt_logprobs": 2, "logprobs": 1, "presence_penalty": 0.5, "repetition_penalty": 1.2},
    ],
    ids=["n=3", "structured", "logprobs"],
)
def test_other_features_work_with_adapters_as_without(
    llama: Path, adapters: list[LoRARequest], succ: Path, asked: dict[str, Any]
) -> None:
    pytest.importorskip("octavo._native", reason="built without the native module")
    params = PARAMS.clone(**asked)

    def answer(llm: LLM, given: list[LoRARequest | None]) -> list[Any]:
        prompts = [{"prompt_token_ids": PROMPT} for _ in given]
        outputs = llm.generate(prompts, params, use_tqdm=False, lora_request=given)
        assert not [each.error for output in outputs for each in output.outputs if each.error]
        return [
            ([(each.token_ids, each.cumulative_logprob) for each in output.outputs], output.prompt_logprobs)
            for output in outputs
        ]

    given = [None, *adapters]
    with LLM(**options_of(llama, succ, max_loras=4, **CROWDED)) as llm:
        together = answer(llm, given)
        assert llm.reset_prefix_cache()
        assert together == [answer(llm, [one])[0] for one in given]
    assert len({str(each) for each in together}) == len(given)


def test_beams_keep_the_adapter_of_their_request(llama: Path, adapters: list[LoRARequest], succ: Path) -> None:
    pytest.importorskip("octavo._native", reason="built without the native module")
    given = [None, *adapters[:2]]
    params = BeamSearchParams(beam_width=3, max_tokens=6, ignore_eos=True)

    def search(llm: LLM, asked: list[LoRARequest | None]) -> list[Any]:
        found = llm.beam_search([{"prompt_token_ids": PROMPT} for _ in asked], params, lora_request=asked)
        return [[(each.tokens, each.score) for each in output.sequences] for output in found]

    with LLM(**options_of(llama, succ)) as llm:
        together = search(llm, given)
        assert llm.reset_prefix_cache()
        assert together == [search(llm, [one])[0] for one in given]
    assert len({str(each) for each in together}) == len(given)


def test_adapters_in_memory_take_what_the_plan_says(llama: Path, succ: Path, tmp_path: Path) -> None:
    """At most: of the highest rank, of all projections, and one that runs dropped from those in memory."""
    pytest.importorskip("octavo._native", reason="built without the native module")
    folders = [save_tiny_adapter(tmp_path / str(seed), llama, rank=6, seed=seed) for seed in range(3)]
    with LLM(**options_of(llama, succ, max_loras=1, max_cpu_loras=2, max_lora_rank=6)) as llm:
        each, rest = divmod(llm.info.plan.adapter_bytes, 3)
        assert each > 0 and rest == 0
        ask(llm, [_named(folders[0])])
        assert counters(llm)["bytes"] == each
        for number, folder in enumerate(folders[1:], 2):
            found = AdapterFolders(llm.info.facts, 6).find(_named(folder))
            llm.collective_rpc("load_adapter", found)
            assert counters(llm)["bytes"] == number * each
        assert counters(llm)["memory_evictions"] == 1
        half = save_tiny_adapter(tmp_path / "half", llama, rank=6, dtype=torch.bfloat16)
        ask(llm, [_named(half)])
        assert counters(llm)["bytes"] == each + each // 2, "bfloat16 stays that"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_stored_in_bfloat16_answer_as_the_same_numbers_in_float32(
    llama: Path, succ: Path, tmp_path: Path, dtype: str
) -> None:
    half = save_tiny_adapter(tmp_path / "half", llama, dtype=torch.bfloat16)
    tensors = {name: tensor.float() for name, tensor in load_file(half / "adapter_model.safetensors").items()}
    shutil.copytree(half, tmp_path / "full")
    save_file(tensors, tmp_path / "full" / "adapter_model.safetensors")
    with LLM(**options_of(llama, succ, dtype=dtype)) as llm:
        narrow, wide = (ask(llm, [_named(tmp_path / name)]) for name in ("half", "full"))
        assert counters(llm)["loads"] == 2
    assert narrow == wide
    full = _named(save_tiny_adapter(tmp_path / "exact", llama))
    with LLM(**options_of(llama, succ, dtype=dtype, lora_dtype="bfloat16", max_lora_rank=4)) as llm:
        assert ask(llm, [full]) == narrow, "rounded when it is loaded"
        assert counters(llm)["bytes"] * 4 == llm.info.plan.adapter_bytes
