"""Prompts as embeddings: the model's own rows answer as their tokens do, to the bit."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.numpy import load_file, save
from safetensors.torch import save as torch_save

from octavo import LLM, RequestOutput, SamplingParams
from octavo.frontend.prompt_embeds import decode_embeds
from octavo.words.errors import RequestError
from tests.tiny_models import save_tiny_model

PROMPTS = [list(range(40, 77)), [5], list(range(100, 120))]
PARAMS = SamplingParams(temperature=0.7, seed=2, max_tokens=6, ignore_eos=True, logprobs=2)
SIZES: dict[str, Any] = {"max_model_len": 96, "block_size": 16, "dtype": "float32", "enable_prompt_embeds": True}
WAYS: dict[str, dict[str, Any]] = {
    "native": {"num_gpu_blocks_override": 100},
    "reference": {"num_gpu_blocks_override": 100, "kernels": "reference"},
    "chunks and little room": {"num_gpu_blocks_override": 6, "max_num_batched_tokens": 9, "max_num_seqs": 3},
    "background process": {"multiprocess": True, "num_gpu_blocks_override": 100},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("embeds") / "model", "llama")


@pytest.fixture(scope="module", params=WAYS)
def llm(request: pytest.FixtureRequest, model: Path, succ: Path) -> Iterator[LLM]:
    with LLM(str(model), tokenizer=str(succ), **{**SIZES, **WAYS[request.param]}) as llm:
        yield llm


def rows_of(model: Path, token_ids: list[int]) -> npt.NDArray[Any]:
    """Rows of the embedding as the checkpoint has them."""
    rows: npt.NDArray[Any] = load_file(model / "model.safetensors")["model.embed_tokens.weight"][token_ids]
    return rows


def ask(llm: LLM, *prompts: Any) -> list[Any]:
    outputs: list[RequestOutput] = llm.generate(list(prompts), PARAMS, use_tqdm=False)
    return [
        (choice.token_ids, [{token: each.logprob for token, each in row.items()} for row in choice.logprobs or ()])
        for output in outputs
        for choice in output.outputs
    ]


def test_embeddings_answer_as_their_tokens_to_the_bit(llm: LLM, model: Path) -> None:
    wanted = ask(llm, *({"prompt_token_ids": prompt} for prompt in PROMPTS))
    before = llm.collective_rpc("graph_counters")[0]["eager_steps"]
    found = ask(llm, *({"prompt_embeds": rows_of(model, prompt)} for prompt in PROMPTS))
    assert llm.collective_rpc("graph_counters")[0]["eager_steps"] > before
    if llm.info.plan.batch_invariant:
        assert found == wanted
    else:
        assert [ids for ids, _ in found] == [ids for ids, _ in wanted]


def test_the_prefix_cache_knows_embeddings_by_what_they_hold(model: Path, succ: Path) -> None:
    options = {**SIZES, "num_gpu_blocks_override": 100, "enable_prefix_caching": True}
    rows = torch.from_numpy(rows_of(model, PROMPTS[0]))
    other = rows.clone()
    other[20] += 1.0
    with LLM(str(model), tokenizer=str(succ), **options) as llm:
        outputs = [
            llm.generate({"prompt_embeds": each}, PARAMS, use_tqdm=False)[0]
            for each in (rows, rows, other, other.half().float())
        ]
        placeholders = llm.generate({"prompt_token_ids": [0] * 37}, PARAMS, use_tqdm=False)[0]
    assert [output.num_cached_tokens for output in outputs] == [0, 32, 16, 0]
    assert placeholders.num_cached_tokens == 0
    assert outputs[0].outputs[0].token_ids == outputs[1].outputs[0].token_ids != outputs[2].outputs[0].token_ids


@pytest.mark.parametrize("llm", ["native"], indirect=True)
@pytest.mark.parametrize(
    ("prompt", "params", "says"),
    [
        ({"prompt_embeds": np.zeros((3, 7), np.float32)}, {}, r"shape \[tokens, 48\], got \[3, 7\]"),
        ({"prompt_embeds": np.zeros((0, 48), np.float32)}, {}, "shape"),
        ({"prompt_embeds": np.zeros((3, 48), np.int64)}, {}, "float32 or float16, .* got int64"),
        ({"prompt_embeds": torch.zeros(3, 48, dtype=torch.int64)}, {}, "got torch.int64"),
        ({"prompt_embeds": torch.zeros(3, 48, dtype=torch.float64)}, {}, "got torch.float64"),
        ({"prompt_embeds": [[0.0] * 48]}, {}, "got list"),
        ({"prompt_embeds": np.full((3, 48), np.nan, np.float32)}, {}, "NaN"),
        ({"prompt_embeds": torch.full((3, 48), torch.inf, dtype=torch.bfloat16)}, {}, "NaN or infinity"),
        ({"prompt_embeds": np.zeros((96, 48), np.float32)}, {}, "context length"),
        ({"prompt_embeds": np.zeros((3, 48), np.float32), "prompt": "a"}, {}, "not both"),
        ({"prompt_embeds": np.zeros((3, 48), np.float32)}, {"prompt_logprobs": 1}, "prompt_logprobs needs the tokens"),
        ({"prompt_embeds": np.zeros((3, 48), np.float32)}, {"repetition_penalty": 1.1}, "repetition_penalty needs"),
    ],
)
def test_what_is_no_prompt_is_refused(llm: LLM, prompt: Any, params: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        llm.generate(prompt, SamplingParams(**params), use_tqdm=False)


def test_an_engine_takes_none_unless_it_is_told_to(succ: Path) -> None:
    with (
        LLM(str(succ), max_model_len=64, kv_cache_memory_bytes="4MiB") as llm,
        pytest.raises(RequestError, match="--enable-prompt-embeds"),
    ):
        llm.generate({"prompt_embeds": np.zeros((1, 320), np.float32)}, use_tqdm=False)


def npy(array: npt.NDArray[Any], **options: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def saved_by_torch(tensor: torch.Tensor) -> bytes:
    stream = io.BytesIO()
    torch.save(tensor, stream)
    return stream.getvalue()


ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


HALVES = torch_save({"prompt_embeds": torch.from_numpy(ROWS).bfloat16()})


@pytest.mark.parametrize(
    "data", [npy(ROWS), save({"prompt_embeds": ROWS}), HALVES], ids=["npy", "safetensors", "bfloat16"]
)
def test_what_comes_over_http_is_read(data: bytes) -> None:
    assert np.array_equal(decode_embeds(base64.b64encode(data).decode()), ROWS)


@pytest.mark.parametrize(
    "data",
    [
        npy(np.array([[{"a": 1}]], dtype=object), allow_pickle=True),
        npy(np.asfortranarray(ROWS)),
        npy(ROWS)[:-4],
        npy(ROWS).replace(b"(2, 3)", b"(9, 9)"),
        save({"a": ROWS, "b": ROWS}),
        save({"a": ROWS.astype(np.int64)}),
        b"\x80\x04K\x01.",
        saved_by_torch(torch.zeros(2, 3)),
        b"\x93NUMPY\x01\x00" + (9000).to_bytes(2, "little") + b"(" * 8999 + b"\n",
        b"",
    ],
    ids=[
        "pickle in npy",
        "other order",
        "cut off",
        "too large a shape",
        "two tensors",
        "integers",
        "pickle",
        "pickle of torch",
        "header of brackets",
        "nothing",
    ],
)
def test_what_could_hold_code_or_lies_about_its_size_is_refused(data: bytes) -> None:
    with pytest.raises(RequestError, match="base64 of an .npy file or of safetensors"):
        decode_embeds(base64.b64encode(data).decode())
    with pytest.raises(RequestError, match="base64"):
        decode_embeds("no base64!")
