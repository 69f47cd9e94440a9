"""What drafters guess is what the networks of their papers say, computed anew and without any cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from octavo.config.flat import config_from_kwargs
from octavo.engine.build import build_engine_core
from octavo.executor.protocol import Executor
from octavo.words.messages import (
    CachedRequestData,
    ModelRunnerOutput,
    NewRequestData,
    ResolvedSampling,
    SchedulerOutput,
)
from octavo.words.sampling_params import SamplingParams
from tests.drafters import save_eagle_head, save_medusa_heads, save_noisy_copy
from tests.tiny_models import VOCAB_SIZE, oracle, save_tiny_model

PROMPT = [5, 17, 300, 5, 8, 44, 17, 2, 9, 101, 5, 6]
NUM_DRAFTS = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny") / "model", "llama")


@contextmanager
def executor_of(model: Path, method: str, drafter: Path) -> Iterator[Executor]:
    config = config_from_kwargs(
        model=str(model),
        dtype="float32",
        max_model_len=128,
        block_size=16,
        num_gpu_blocks_override=20,
        speculative_method=method,
        speculative_model=str(drafter),
        num_speculative_tokens=NUM_DRAFTS,
    )
    core, _ = build_engine_core(config)
    try:
        yield core.executor
    finally:
        core.shutdown()


class Request:
    """Steps of one greedy request, as a scheduler would plan them."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._num_computed = 0
        self.tokens: list[int] = []

    def start(self, prompt: Sequence[int], *, chunk: int | None = None) -> list[int]:
        """Compute the prompt, in two steps if the first is a ``chunk``; what is guessed then."""
        self.tokens = list(prompt)
        sampling = ResolvedSampling(
            params=SamplingParams(temperature=0.0), seed=0, max_tokens=99, num_text_tokens=VOCAB_SIZE
        )
        new = NewRequestData(
            request_id="r",
            prompt_token_ids=list(prompt),
            output_token_ids=[],
            sampling=sampling,
            block_ids=([1, 2, 3],),
            num_computed_tokens=0,
        )
        first = self._run([], chunk or len(prompt), new_requests=[new])
        return self._run([], len(prompt) - chunk) if chunk else first

    def verify(self, drafts: list[int]) -> list[int]:
        """A step with these drafts; what is guessed after it."""
        return self._run(drafts, 1 + len(drafts))

    def _run(self, drafts: list[int], count: int, **new: Any) -> list[int]:
        known = CachedRequestData(request_id="r", new_block_ids=([],), num_computed_tokens=self._num_computed)
        step = SchedulerOutput(
            step_id=1,
            num_scheduled_tokens={"r": count},
            draft_token_ids={"r": drafts} if drafts else {},
            num_drafts={"r": NUM_DRAFTS},
            **(new or {"cached_requests": [known]}),
        )
        result: ModelRunnerOutput = self._executor.sample(self._executor.execute(step))
        (said,) = result.sampled_token_ids
        self._num_computed += count - len(drafts) + max(len(said) - 1, 0)
        self.tokens += said
        return result.draft_token_ids.get("r", [])


Guess = Callable[[list[int]], list[int]]


@torch.inference_mode()
def hidden_states(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    return model.model(torch.tensor([tokens]), use_cache=False).last_hidden_state[0]


def draft_model_guess(model: Path, drafter: Path) -> Guess:
    second = oracle(drafter)

    @torch.inference_mode()
    def guess(tokens: list[int]) -> list[int]:
        said = list(tokens)
        for _ in range(NUM_DRAFTS):
            said.append(int(second(torch.tensor([said]), use_cache=False).logits[0, -1].argmax()))
        return said[len(tokens) :]

    return guess


def eagle_guess(model: Path, drafter: Path) -> Guess:
    target, weights = oracle(model), load_file(drafter / "model.safetensors")
    layer = LlamaDecoderLayer(target.config, 0).eval()
    layer.input_layernorm = nn.Identity()
    own = {name.removeprefix("layers.0."): each for name, each in weights.items() if name.startswith("layers.0.")}
    layer.load_state_dict(own)
    rotary = LlamaRotaryEmbedding(target.config)
    embedding = weights.get("embed_tokens.weight", target.get_input_embeddings().weight)

    @torch.inference_mode()
    def guess(tokens: list[int]) -> list[int]:
        features, said = hidden_states(target, tokens)[:-1], list(tokens)
        for _ in range(NUM_DRAFTS):
            joined = torch.cat((embedding[torch.tensor(said[1:])], features), dim=-1)
            x = nn.functional.linear(joined, weights["fc.weight"], weights.get("fc.bias"))[None]
            positions = torch.arange(len(said) - 1)[None]
            mask = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)[None, None]
            out = layer(x, attention_mask=mask, position_embeddings=rotary(x, positions), position_ids=positions)
            out = (out[0] if isinstance(out, tuple) else out).reshape(x.shape[1:])
            said.append(int(target.lm_head(out[-1]).argmax()))
            features = torch.cat((features, out[-1:]))
        return said[len(tokens) :]

    return guess


def medusa_guess(model: Path, drafter: Path) -> Guess:
    target = oracle(model)
    weights = {
        name.replace("blocks.", "").replace("layers.", ""): each
        for name, each in load_file(drafter / "model.safetensors").items()
    }

    def of_layer(head: int, layer: int, kind: str) -> Tensor:
        return weights.get(f"{head}.{layer}.linear.{kind}", weights.get(f"{head}.{layer}.{kind}"))

    @torch.inference_mode()
    def guess(tokens: list[int]) -> list[int]:
        drafts = []
        for head in range(NUM_DRAFTS):
            x = hidden_states(target, tokens)[-2]
            for layer in range(2):
                linear = nn.functional.linear(x, of_layer(head, layer, "weight"), of_layer(head, layer, "bias"))
                x = x + nn.functional.silu(linear)
            output = weights.get(f"lm_heads.{head}.weight", weights.get(f"{head}.2.weight"))
            drafts.append(int((output @ x).argmax()))
        return drafts

    return guess


CASES: dict[str, tuple[str, Callable[..., Path], dict[str, Any], Callable[[Path, Path], Guess]]] = {
    "draft model": ("draft_model", save_noisy_copy, {}, draft_model_guess),
    "eagle": ("eagle", save_eagle_head, {}, eagle_guess),
    "eagle without bias, with the model's embedding": (
        "eagle",
        save_eagle_head,
        {"bias": False, "embedding": False},
        eagle_guess,
    ),
    "medusa": ("medusa", save_medusa_heads, {}, medusa_guess),
    "medusa in vLLM's format": ("medusa", save_medusa_heads, {"naming": "vllm"}, medusa_guess),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("chunk", [None, 7])
def test_guesses_are_those_of_the_network_step_after_step(
    model: Path, tmp_path: Path, case: str, chunk: int | None
) -> None:
    method, save, options, reference = CASES[case]
    drafter = save(model, tmp_path, **options)
    expected, truth = reference(model, drafter), draft_model_guess(model, model)
    with executor_of(model, method, drafter) as executor:
        request = Request(executor)
        drafts = request.start(PROMPT, chunk=chunk)
        assert drafts == expected(request.tokens)
        # Wrong drafts, none, right ones, and right ones before a wrong one.
        for given in ([1, 1], [], truth(request.tokens), None):
            given = [*truth(request.tokens)[:1], 1] if given is None else given
            drafts = request.verify(given)
            assert drafts == expected(request.tokens)
    assert len(drafts) == NUM_DRAFTS
