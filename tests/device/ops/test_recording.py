"""Recordings of small forward passes: what they replay, what splits them, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from octavo.device.ops.kernels import Kernels, load_kernels
from octavo.device.ops.linear import DenseWeight, LinearWeight
from octavo.device.ops.recording import Arena, Recorder, Recording
from octavo.device.ops.rope import RopeTable
from octavo.words.errors import CaptureError

pytest.importorskip("octavo._native", reason="built without the native module")

MAX_TOKENS, RECORDED_TOKENS, WIDTH, VOCAB_SIZE = 40, 13, 24, 50
Body = Callable[["Model", Tensor], Tensor]


class Model(nn.Module):
    """An embedding, and ``body`` on top of it."""

    def __init__(self, kernels: Kernels, body: Body) -> None:
        super().__init__()
        numbers = torch.Generator().manual_seed(3)
        self.kernels = kernels
        self.body = body
        self.table = DenseWeight(torch.randn(VOCAB_SIZE, WIDTH, generator=numbers))
        self.norm = torch.randn(WIDTH, generator=numbers)
        self.square = DenseWeight(torch.randn(WIDTH, WIDTH, generator=numbers))
        self.positions = torch.arange(MAX_TOKENS)
        self.rope_table = RopeTable(torch.randn(MAX_TOKENS, 8, generator=numbers))

    def forward(self, token_ids: Tensor) -> Tensor:
        return self.body(self, self.kernels.embedding(token_ids, self.table))

    def normed(self, x: Tensor) -> Tensor:
        return self.kernels.rms_norm(x, self.norm, 1e-6)


class TorchFormat:
    """A weight format that computes with torch."""

    def __init__(self, weight: LinearWeight) -> None:
        self._weight = weight
        self.dtype = weight.dtype

    def project(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return self._weight.project(x, dtype)


class Recorded:
    def __init__(self, body: Body) -> None:
        kernels = load_kernels("native", num_threads=2)
        assert kernels.native is not None
        self.model = Model(kernels, body)
        self.token_ids = torch.arange(MAX_TOKENS) * 7 % VOCAB_SIZE
        self.arena = Arena(MAX_TOKENS)
        arrays = [self.token_ids, self.model.positions]
        recorder = Recorder(kernels.native, self.arena, RECORDED_TOKENS, token_arrays=arrays)
        self.recording: Recording = recorder.record(self.model, lambda: self.model(self.token_ids[:RECORDED_TOKENS]))

    def assert_replays_are_eager_runs(self) -> None:
        for num_tokens in (1, RECORDED_TOKENS, MAX_TOKENS):
            self.token_ids.copy_((self.token_ids + 11) % VOCAB_SIZE)
            eager = self.model(self.token_ids[:num_tokens])
            replayed = self.recording.replay(num_tokens, 1, dict)
            assert eager.abs().sum() > 0
            assert torch.equal(replayed, eager)

    @property
    def splits(self) -> list[str]:
        return [split.name for split in self.recording.splits]


def layers(model: Model, x: Tensor) -> Tensor:
    residual = x
    for _ in range(4):
        x, residual = model.kernels.add_rms_norm(model.kernels.linear(x, model.square), residual, model.norm, 1e-6)
    return model.normed(x)


def test_a_pass_of_native_ops_is_one_call_at_any_size() -> None:
    recorded = Recorded(layers)
    (graph,) = recorded.recording.pieces
    assert len(graph) == 1 + 4 * 2 + 1
    recorded.assert_replays_are_eager_runs()


def test_memory_nobody_holds_is_used_again() -> None:
    recorded = Recorded(layers)
    # At any moment: the input of an op, the stream it is added to, and its two results.
    assert len(recorded.arena.buffers) <= 5
    assert recorded.arena.num_bytes <= 5 * MAX_TOKENS * WIDTH * 4


def turned(model: Model, x: Tensor, positions: Tensor) -> Tensor:
    return model.kernels.rope(x.unflatten(-1, (3, 8)), positions, model.rope_table).flatten(1)


def test_an_op_without_a_kernel_is_called_between_two_native_calls() -> None:
    recorded = Recorded(
        lambda model, x: model.normed(turned(model, model.normed(x), model.positions[:RECORDED_TOKENS]))
    )
    assert recorded.splits == ["rope"]
    assert [type(piece).__name__ for piece in recorded.recording.pieces] == ["Graph", "Split", "Graph"]
    for num_tokens in (5, MAX_TOKENS):
        model = recorded.model
        rows = model.kernels.embedding(recorded.token_ids[:num_tokens], model.table)
        eager = model.normed(turned(model, model.normed(rows), model.positions[:num_tokens]))
        assert torch.equal(recorded.recording.replay(num_tokens, 1, dict), eager)


def doubled(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + x, x.new_ones(len(x), 2)


def test_a_models_own_op_may_have_several_results() -> None:
    recorded = Recorded(lambda model, x: model.normed(model.kernels.custom_op(doubled, x)[0]))
    assert recorded.splits == ["doubled"]
    recorded.assert_replays_are_eager_runs()


def test_an_op_whose_wrapper_turns_to_torch_is_called_as_a_whole() -> None:
    recorded = Recorded(lambda model, x: model.normed(model.kernels.linear(x, TorchFormat(model.square))))
    assert recorded.splits == ["linear"]
    recorded.assert_replays_are_eager_runs()


def test_rows_that_are_not_contiguous_are_copied_at_every_step() -> None:
    weight = DenseWeight(torch.randn(2 * WIDTH, WIDTH, generator=torch.Generator().manual_seed(5)))
    recorded = Recorded(lambda model, x: model.normed(model.kernels.linear(x, weight)[:, WIDTH:]))
    assert recorded.splits == ["rms_norm"]
    recorded.assert_replays_are_eager_runs()


def test_views_and_widths_may_be_taken_between_ops() -> None:
    def body(model: Model, x: Tensor) -> Tensor:
        assert x.shape[-1] == x.size(1) == WIDTH and x.dim() == len(x.shape) == 2 and x.shape[1:] == (WIDTH,)
        return model.normed(x.view(-1, 4, WIDTH // 4).flatten(1).unflatten(1, (2, -1)).reshape(-1, WIDTH))

    recorded = Recorded(body)
    assert recorded.splits == []
    recorded.assert_replays_are_eager_runs()


@pytest.mark.parametrize("call", [lambda x: x + 1, lambda x: x.add_(1), lambda x: torch.zeros(3), torch.softmax])
def test_another_tensor_call_is_refused_where_it_is_made(call: Any) -> None:
    with pytest.raises(CaptureError, match=r"aten.* is called at .*test_recording.py:\d+ .*Kernels.custom_op"):
        Recorded(lambda model, x: (call(x, -1) if call is torch.softmax else call(x)) and x)


READS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x[0, 0].item(),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "bool": lambda x: bool(x[0, 0]),
    "float": lambda x: float(x[0, 0]),
    "len": len,
    "numel": lambda x: x.numel(),
    "iteration": list,
    "shape[0]": lambda x: x.shape[0],
    "shape[-2]": lambda x: x.shape[-2],
    "shape[:-1]": lambda x: x.shape[:-1],
    "unpacked shape": lambda x: [*x.shape],
    "size(0)": lambda x: x.size(0),
    "size()[0]": lambda x: x.size()[0],
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_values_and_the_number_of_tokens_cannot_be_read(read: Callable[[Tensor], Any]) -> None:
    def body(model: Model, x: Tensor) -> Tensor:
        read(x)
        return x

    with pytest.raises(CaptureError, match=r"(called|read) at .*test_recording.py:\d+ \(.*recording is for all"):
        Recorded(body)


def test_a_result_without_a_row_per_token_is_refused() -> None:
    with pytest.raises(CaptureError, match="op sum returned what has no row per token"):
        Recorded(lambda model, x: model.kernels.custom_op(torch.sum, x))


def test_after_a_refusal_the_ops_run_as_before() -> None:
    with pytest.raises(CaptureError):
        recorded = Recorded(lambda model, x: x + 1)
    recorded = Recorded(layers)
    recorded.assert_replays_are_eager_runs()


def test_a_timed_replay_tells_when_each_op_ran_and_for_whom() -> None:
    recorded = Recorded(layers)
    (graph,) = recorded.recording.graphs
    graph.timed = True
    recorded.recording.replay(3, 1, dict)
    timings = graph.timings()
    assert [name for name, *_ in timings] == ["embedding", *["linear", "rms_norm"] * 4, "rms_norm"]
    ends = [0.0, *(end for *_, end in timings)]
    assert all(before <= start <= end for before, (*_, start, end) in zip(ends, timings, strict=False))
