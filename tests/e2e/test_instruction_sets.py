"""An engine that is told an instruction set runs on it alone, and answers to the bit as on any other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from tests.instruction_sets import counter_of
from tests.succ import make_succ
from tests.tiny_models import save_tiny_model

native = pytest.importorskip("octavo._native", reason="built without the native module")

PROMPTS = [{"prompt_token_ids": list(range(3, 3 + length))} for length in (1, 30, 7)]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, detokenize=False),
    SamplingParams(temperature=0.8, seed=3, top_p=0.9, max_tokens=6, ignore_eos=True, detokenize=False),
    SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, detokenize=False, logprobs=2),
]


@pytest.fixture(autouse=True)
def _highest_instruction_set_again() -> Iterator[None]:
    yield
    native.set_isa("auto")


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_every_kernel_is_of_the_instruction_set_asked_for(quantization: str, tmp_path: Path) -> None:
    make_succ(tmp_path / "succ")
    model = {"model": str(save_tiny_model(tmp_path / "model", "gemma3")), "tokenizer": str(tmp_path / "succ")}
    answers: list[Any] = []
    for isa in native.available_isas():
        before = Counter(native.kernel_counts())
        options = {"dtype": "float32", "quantization": quantization, "max_model_len": 256, "cpu_isa": isa}
        with LLM(**model, **options, num_threads=2) as llm:
            outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
            assert llm.info.plan.cpu_isa == isa
        ran = Counter(native.kernel_counts()) - before
        assert all(name == counter_of(name.partition(".")[0], isa) for name in ran)
        assert {name.partition(".")[0] for name in ran} >= {"rms_norm", "qkv_rope_write", "paged_attention"}
        answers.append([(one.token_ids, one.logprobs) for output in outputs for one in output.outputs])
    assert all(each == answers[0] for each in answers)
