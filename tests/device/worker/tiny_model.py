"""A model of two attention layers over the real paged cache, small enough to follow; and steps to drive it by hand.

Layer ``full`` sees everything, layer ``window`` the last five tokens. There are no positions but those the window
makes, so what a token's logits depend on is exactly which cached tokens were read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from octavo.device.attention.context import ForwardContext
from octavo.device.attention.reference import ReferenceAttention
from octavo.device.layers.attention import Attention, attention_layers
from octavo.device.ops.kernels import REFERENCE_KERNELS
from octavo.device.ops.paged_attention import AttentionOptions
from octavo.device.ops.qkv_rope_write import write_kv
from octavo.device.sample.prompt_logprobs import PromptLogprobs
from octavo.device.sample.sampler import Sampler, builtin_processors
from octavo.device.spec_decode.drafter import Drafter
from octavo.device.worker.graphs import StepGraphs
from octavo.device.worker.head import SamplingHead
from octavo.device.worker.model_runner import ModelRunner
from octavo.words.kv_cache_spec import KVCacheConfig, KVCacheGroup, KVCacheTensor
from octavo.words.messages import (
    CachedRequestData,
    ModelRunnerOutput,
    NewRequestData,
    ResolvedSampling,
    SchedulerOutput,
)
from octavo.words.sampling_params import SamplingParams

VOCAB_SIZE = 40
HEADS, HEAD_SIZE = 2, 4
HIDDEN_SIZE = HEADS * HEAD_SIZE
WINDOW = 5
POISON = VOCAB_SIZE - 1
"""A prompt that ends in this token has NaN logits."""


class TinyModel(nn.Module):
    """Weights are random, the same for every instance."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator), requires_grad=False)

        self.embedding = random(VOCAB_SIZE, HIDDEN_SIZE)
        self.projections = nn.ParameterDict({name: random(3, HIDDEN_SIZE, HIDDEN_SIZE) for name in ("full", "window")})
        self.output = random(HIDDEN_SIZE, VOCAB_SIZE)
        self.attentions = nn.ModuleList(
            Attention(name, self._options(window), ReferenceAttention(), torch.float32)
            for name, window in (("full", None), ("window", WINDOW))
        )

    @staticmethod
    def _options(window: int | None) -> AttentionOptions:
        return AttentionOptions(
            num_heads=HEADS, num_kv_heads=HEADS, head_size=HEAD_SIZE, scale=1.0, sliding_window=window
        )

    def forward(self, token_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        x = self.embedding[token_ids]
        poison = torch.where(token_ids == POISON, math.nan, 0.0)[:, None]
        for layer in self.attentions:
            query, key, value = x @ self.projections[layer.name]
            slots = ctx.metadata[layer.name].slot_mapping
            write_kv(key.view(-1, HEADS, HEAD_SIZE), value.view(-1, HEADS, HEAD_SIZE), layer.kv_cache, slots)
            x = x + layer(query.reshape(-1, HEADS, HEAD_SIZE), ctx)
        return x + poison

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.output

    def kv_cache_specs(self) -> dict[str, Any]:
        return {name: layer.kv_cache_spec() for name, layer in attention_layers(self).items()}


def kv_config(block_size: int = 4, num_blocks: int = 64, max_model_len: int = 128) -> KVCacheConfig:
    """Two groups of one layer each, which share one allocation."""
    specs = {name: spec.with_block_size(block_size) for name, spec in TinyModel().kv_cache_specs().items()}
    page_bytes = specs["full"].page_bytes
    return KVCacheConfig(
        num_blocks=num_blocks,
        groups=tuple(KVCacheGroup(layer_names=(name,), spec=spec) for name, spec in specs.items()),
        tensors=(KVCacheTensor(size_bytes=num_blocks * page_bytes, layer_names=tuple(specs)),),
        scheduler_block_size=block_size,
        hash_block_size=block_size,
        max_model_len=max_model_len,
    )


def make_runner(
    config: KVCacheConfig | None = None, max_num_requests: int = 8, drafter: Drafter | None = None
) -> ModelRunner:
    model = TinyModel()
    sampler = Sampler(max_num_requests, builtin_processors(VOCAB_SIZE))
    prompt_logprobs = PromptLogprobs()
    graphs = StepGraphs(model, REFERENCE_KERNELS, max_num_requests)
    head = SamplingHead(graphs, sampler, prompt_logprobs, VOCAB_SIZE, drafter)
    sizes = {"max_num_requests": max_num_requests, "max_num_tokens": 2048}
    runner = ModelRunner(model, graphs, head, (sampler, prompt_logprobs), **sizes)
    runner.initialize_kv_cache(config or kv_config())
    return runner


class Driver:
    """Plays the scheduler for a runner: hands out blocks and counts computed tokens; finished requests keep theirs."""

    num_text_tokens = VOCAB_SIZE

    def __init__(self, runner: ModelRunner, config: KVCacheConfig | None = None) -> None:
        self.runner = runner
        self.config = config or kv_config()
        self.tokens: dict[str, list[int]] = {}
        self._prompts: dict[str, int] = {}
        self._sampling: dict[str, ResolvedSampling] = {}
        self._computed: dict[str, int] = {}
        self._num_blocks: dict[str, list[int]] = {}
        self._next_block = 1
        self._known: set[str] = set()
        self._ended: dict[str, list[str]] = {"finished": [], "preempted": []}
        self._step_id = 0

    def add(self, request_id: str, prompt: Sequence[int], *, seed: int = 0, **params: Any) -> None:
        sampling = SamplingParams(**{"temperature": 0.0, **params})
        self._sampling[request_id] = ResolvedSampling(
            params=sampling, seed=seed, max_tokens=99, num_text_tokens=self.num_text_tokens
        )
        self.tokens[request_id] = list(prompt)
        self._prompts[request_id] = len(prompt)
        self._reset(request_id)

    def end(self, request_id: str) -> None:
        self._ended["finished"].append(request_id)
        self._known.discard(request_id)

    def preempt(self, request_id: str) -> None:
        """The request starts again at its next step, from nothing."""
        self._ended["preempted"].append(request_id)
        self._known.discard(request_id)
        self._reset(request_id)

    def burst(self, num_decode_steps: int, *names: str) -> ModelRunnerOutput:
        """Take so many decode steps at once."""
        result = self.step(num_decode_steps, **dict.fromkeys(names, 1))
        for name, sampled in zip(result.request_ids, result.sampled_token_ids, strict=True):
            self._computed[name] += len(sampled) - 1
        return result

    def step(self, num_decode_steps: int = 1, /, **num_tokens: int) -> ModelRunnerOutput:
        """Compute so many tokens of each named request (0: all that are known)."""
        scheduled = {name: count or len(self.tokens[name]) - self._computed[name] for name, count in num_tokens.items()}
        output = SchedulerOutput(
            step_id=self._step_id,
            num_scheduled_tokens=scheduled,
            total_num_scheduled_tokens=sum(scheduled.values()),
            finished_request_ids=self._ended["finished"],
            preempted_request_ids=self._ended["preempted"],
            num_decode_steps=num_decode_steps,
        )
        self._ended = {"finished": [], "preempted": []}
        for name, count in scheduled.items():
            self._add_to(output, name, self._new_blocks(name, count + num_decode_steps - 1))
        result = self.runner.sample(self.runner.execute(output))
        assert result.step_id == self._step_id
        assert result.request_ids == list(scheduled)
        self._step_id += 1
        for name, sampled in zip(result.request_ids, result.sampled_token_ids, strict=True):
            self._computed[name] += scheduled[name]
            self.tokens[name] += sampled
        return result

    def outputs(self, request_id: str) -> list[int]:
        return self.tokens[request_id][self._prompts[request_id] :]

    def _reset(self, request_id: str) -> None:
        self._computed[request_id] = 0
        self._num_blocks[request_id] = [0] * len(self.config.groups)

    def _new_blocks(self, name: str, count: int) -> tuple[list[int], ...]:
        lists = []
        for g, group in enumerate(self.config.groups):
            needed = -(-(self._computed[name] + count) // group.spec.block_size) - self._num_blocks[name][g]
            lists.append(list(range(self._next_block, self._next_block + needed)))
            self._next_block += needed
            self._num_blocks[name][g] += needed
        assert self._next_block <= self.config.num_blocks
        return tuple(lists)

    def _add_to(self, output: SchedulerOutput, name: str, block_ids: tuple[list[int], ...]) -> None:
        if name in self._known:
            known = CachedRequestData(
                request_id=name, new_block_ids=block_ids, num_computed_tokens=self._computed[name]
            )
            output.cached_requests.append(known)
            return
        self._known.add(name)
        tokens, num_prompt = self.tokens[name], self._prompts[name]
        new = NewRequestData(
            request_id=name,
            prompt_token_ids=tokens[:num_prompt],
            output_token_ids=tokens[num_prompt:],
            sampling=self._sampling[name],
            block_ids=block_ids,
            num_computed_tokens=self._computed[name],
        )
        output.new_requests.append(new)


def reference_logits(tokens: Sequence[int]) -> Tensor:
    """[len(tokens), VOCAB_SIZE], computed without any cache."""
    model = TinyModel()
    x = model.embedding[torch.tensor(tokens)]
    distance = torch.arange(len(tokens))[:, None] - torch.arange(len(tokens))
    for name, window in (("full", len(tokens)), ("window", WINDOW)):
        query, key, value = (part.view(-1, HEADS, HEAD_SIZE).transpose(0, 1) for part in x @ model.projections[name])
        scores = query @ key.transpose(1, 2)
        scores = scores.masked_fill((distance < 0) | (distance >= window), -torch.inf)
        x = x + (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)
    return model.compute_logits(x)


def greedy(prompt: Sequence[int], count: int) -> list[int]:
    """What greedy decoding gives, by recomputing everything for each token."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(reference_logits(tokens)[-1].argmax()))
    return tokens[len(prompt) :]
