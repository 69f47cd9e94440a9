"""How much memory a step takes, learnt from small steps."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from octavo.device.worker.dummy import dummy_end, dummy_step
from octavo.device.worker.model_runner import ModelRunner
from octavo.words.kv_cache_spec import KVCacheConfig

FEW_TOKENS, MANY_TOKENS = 16, 48
MANY_REQUESTS = 8
PROFILED_TOKENS = max(MANY_TOKENS, MANY_REQUESTS)
"""Most tokens in a step of ``step_bytes``."""


class PeakBytes(TorchDispatchMode):
    """Counts the most bytes that tensors made while it is active held at once, as ``peak``.

    Exact where resident memory is noise; memory that is no tensor's is not seen.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Torch would import all of its compiler, seconds of start-up, only to keep it away from this class.
        return False

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._live = 0
        self._num_tensors: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = {_storage_key(value) for value in tree_iter((args, kwargs)) if isinstance(value, Tensor)}
        result = func(*args, **kwargs)
        for value in tree_iter(result):
            # A storage that came in and is not ours is a weight or a cache, seen through a view.
            if isinstance(value, Tensor) and (
                _storage_key(value) in self._num_tensors or _storage_key(value) not in given
            ):
                self._watch(value)
        return result

    def _watch(self, tensor: Tensor) -> None:
        key, num_bytes = _storage_key(tensor), tensor.untyped_storage().nbytes()
        if key not in self._num_tensors:
            self._num_tensors[key] = 0
            self._live += num_bytes
            self.peak = max(self.peak, self._live)
        self._num_tensors[key] += 1
        weakref.finalize(tensor, self._drop, key, num_bytes)

    def _drop(self, key: int, num_bytes: int) -> None:
        self._num_tensors[key] -= 1
        if not self._num_tensors[key]:
            del self._num_tensors[key]
            self._live -= num_bytes


def step_bytes(
    runner: ModelRunner,
    config: KVCacheConfig,
    *,
    max_num_tokens: int,
    max_num_requests: int,
    vocab_size: int,
    num_drafts: int = 0,
) -> int:
    """Bytes that the largest step takes beside weights and KV cache.

    Runs small steps on the runner's present cache, and extends the line through two sizes: the forward pass by
    tokens, and by requests what ends a step, which is logits and sampler, also of ``num_drafts`` drafts each, and the
    guesses for the next step. A drafter with layers of its own computes prompts in that end, so it grows by tokens too.
    """
    step = partial(_peaks, runner, config, vocab_size)
    drafts = min(num_drafts, PROFILED_TOKENS - 1)
    many = min(MANY_REQUESTS, max_num_requests, PROFILED_TOKENS // (1 + drafts))
    few_forward, few_end = step(1, FEW_TOKENS, num_guesses=drafts)
    many_forward, many_end = step(1, MANY_TOKENS, num_guesses=drafts)
    ends = [step(num_requests, 1, num_drafts=drafts, num_guesses=drafts)[1] for num_requests in (1, many)]
    forward = _extend((FEW_TOKENS, few_forward), (MANY_TOKENS, many_forward), max_num_tokens)
    end_of_one = _extend((FEW_TOKENS, few_end), (MANY_TOKENS, many_end), max_num_tokens)
    of_others = _extend((1, ends[0]), (many, ends[1]), max_num_requests) - min(ends[0], few_end)
    return forward + end_of_one + of_others


def parameter_bytes(model: nn.Module) -> int:
    """Bytes of a model's parameters, packed weights and buffers; what is tied counts once."""
    storages = {}
    for tensor in (*model.parameters(), *model.buffers()):
        storages[_storage_key(tensor)] = tensor.untyped_storage().nbytes()
    packed = (getattr(module, "packed", None) for module in model.modules())
    return sum(storages.values()) + sum(weight.nbytes for weight in packed if weight is not None)


def _peaks(
    runner: ModelRunner, config: KVCacheConfig, vocab_size: int, num_requests: int, num_tokens: int, **drafts: int
) -> tuple[int, int]:
    """Peak bytes of the forward pass of a dummy step, and of what ends it."""
    output = dummy_step(config, num_requests, num_tokens, vocab_size, **drafts)
    with PeakBytes() as forward:
        step = runner.execute(output)
    with PeakBytes() as end:
        runner.sample(step)
    runner.sample(runner.execute(dummy_end(output)))
    return forward.peak, end.peak


def _extend(small: tuple[int, int], large: tuple[int, int], to: int) -> int:
    (x0, y0), (x1, y1) = small, large
    slope = (y1 - y0) / (x1 - x0) if x1 > x0 else 0.0
    return max(y1, round(y1 + max(slope, 0.0) * (to - x1)))


def _storage_key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
