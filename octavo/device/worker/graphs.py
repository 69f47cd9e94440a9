"""Captured steps: the model's forward pass is recorded at warm-up, and a step is then one native call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from octavo.device.ops.kernels import Kernels
from octavo.device.ops.linear import DenseWeight
from octavo.device.ops.recording import Arena, Recorder, Recording
from octavo.device.sample.candidates import best_ids
from octavo.device.worker.dummy import dummy_step
from octavo.device.worker.input_batch import InputBatch
from octavo.util.spans import Span
from octavo.words.errors import CaptureError
from octavo.words.graph_report import GraphReport
from octavo.words.kv_cache_spec import KVCacheConfig, cdiv
from octavo.words.messages import SchedulerOutput

RECORDED_TOKENS = 7
"""Of the recorded step: few, for start-up waits, and a prime, so that its rows are hardly taken for another axis."""

CHECKED_SIZES = ((1, 1), (3, 3))
"""(requests, tokens of each) at which replays are held to eager steps."""

RECORDED_ROWS = 3


class WholeStep(NamedTuple):
    """A captured step without splits: three ``library.Graph``, and the arrays between them and whoever samples.

    Of the hidden states in ``rows``, int64, ``logits_graph`` gives ``logits``, [most rows, vocab_size] float32, and
    ``best_graph`` no more than their ``best``, [most rows, 2] float64.
    """

    forward: Any
    logits_graph: Any
    best_graph: Any
    rows: npt.NDArray[np.int64]
    logits: Tensor
    best: Tensor


class StepGraphs:
    """The model as runner and head call it: op by op, or once ``record`` was called by replaying what that noted.

    A replay's results live until the next step's: they lie in one arena. Logits of more than ``max_num_rows`` rows are
    computed op by op; 0 is for a model whose steps end without.
    """

    def __init__(self, model: nn.Module, kernels: Kernels, max_num_rows: int) -> None:
        self._model = model
        self._kernels = kernels
        self._rows = np.zeros(max_num_rows, dtype=np.int64)
        self._least_rows_of_best = 0 if self.library is None else self.library.LEAST_ROWS_OF_BEST
        self.forget("not captured yet")

    @property
    def library(self) -> ModuleType | None:
        """The native library that the model's ops run on, if they do."""
        return None if self._kernels.native is None else self._kernels.native.library

    def forget(self, reason: str) -> None:
        """Run op by op from now on, for this reason."""
        self._forward: Recording | None = None
        self._logits: Recording | None = None
        self._best: Recording | None = None
        self._last_head: Recording | None = None
        self._inputs: Any = None
        self._whole_step: WholeStep | None = None
        self._replayed: Tensor | None = None
        self.num_replays = 0
        self.num_eager_steps = 0
        self.num_loop_steps = 0
        self._reason = reason

    def report(self) -> GraphReport:
        """What was captured, or why nothing is."""
        recordings = self._recordings()
        if not recordings:
            return GraphReport(captured=False, reason=self._reason)
        return GraphReport(
            captured=True,
            reason="replays were equal to eager steps, to the bit",
            num_ops=sum(len(graph) for each in recordings for graph in each.graphs),
            splits=[f"{split.name} ({split.where})" for each in recordings for split in each.splits],
            arena_bytes=sum(each.arena.num_bytes for each in recordings),
        )

    def time_ops(self, timed: bool) -> None:
        """From now on let replays take note of when each op ran, or no more."""
        for recording in self._recordings():
            for graph in recording.graphs:
                graph.timed = timed

    def forward_spans(self) -> list[Span]:
        """When each op of the last timed replay of ``forward`` ran; none where nothing is captured."""
        return _op_spans(self._forward)

    def logits_spans(self) -> list[Span]:
        """The same of ``logits`` or ``best``, whichever was asked."""
        return _op_spans(self._last_head)

    def _recordings(self) -> list[Recording]:
        return [each for each in (self._forward, self._logits, self._best) if each is not None]

    # A step

    def forward(self, batch: InputBatch) -> Tensor:
        """Hidden states after the last norm, [T, hidden_size]."""
        is_captured = self._forward is not None and batch.inputs is self._inputs and batch.given is None
        if self._forward is None or not is_captured or batch.num_tokens > self._forward.arena.max_rows:
            self.num_eager_steps += 1
            return self._eager(batch)
        self.num_replays += 1
        self._replayed = self._replay(self._forward, batch)
        return self._replayed

    def logits(self, hidden: Tensor, rows: npt.NDArray[np.int64]) -> Tensor:
        """Logits of some rows [S] of a step's hidden states, float32 [S, vocab_size]."""
        num_rows = len(rows)
        if self._logits is None or num_rows > len(self._rows) or not self._is_replayed(hidden):
            return self.compute_logits(hidden[torch.from_numpy(rows)])
        return self._replay_head(self._logits, rows)

    def best(self, hidden: Tensor, rows: npt.NDArray[np.int64]) -> Tensor | None:
        """The largest logit and its id of such rows, [S, 2]; None where ``logits`` had better be asked."""
        if self._best is None or not self._least_rows_of_best <= len(rows) <= len(self._rows):
            return None
        if not self._is_replayed(hidden):
            return None
        return self._replay_head(self._best, rows)

    def whole_step(self, inputs: object) -> WholeStep | None:
        """What replays a step of ``inputs`` in two calls; None where nothing does."""
        return self._whole_step if inputs is self._inputs else None

    def note_loop(self, num_steps: int) -> None:
        """Somebody replayed the whole step so many times."""
        self.num_replays += num_steps
        self.num_loop_steps += num_steps

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits of any rows, [R, hidden_size] -> float32 [R, vocab_size]; never replayed."""
        logits: Tensor = self._model.compute_logits(hidden)
        return logits

    def _is_replayed(self, hidden: Tensor) -> bool:
        # Asking a tensor where it lies takes longer, for torch is cold after a step.
        return hidden is self._replayed or hidden.data_ptr() == self._hidden.data_ptr()

    def _eager(self, batch: InputBatch) -> Tensor:
        hidden: Tensor = self._model(*batch.arguments, batch.context)
        return hidden

    @staticmethod
    def _replay(recording: Recording, batch: InputBatch) -> Tensor:
        return recording.replay(batch.num_tokens, batch.num_requests, lambda: batch.context.metadata)

    def _replay_head(self, recording: Recording, rows: npt.NDArray[np.int64]) -> Tensor:
        num_rows = len(rows)
        self._rows[:num_rows] = rows
        self._last_head = recording
        return recording.replay(num_rows, num_rows, dict)

    # Capture

    def record(self, batch: InputBatch) -> None:
        """Run a step and note it, and then its logits. Raises CaptureError."""
        inputs, native = batch.inputs, self._kernels.native
        assert native is not None, "only native kernels can be captured"
        recorder = Recorder(
            native,
            Arena(inputs.max_num_tokens),
            batch.num_tokens,
            token_arrays=inputs.token_arrays,
            request_arrays=inputs.request_arrays,
            values=batch.context.metadata,
        )
        forward = recorder.record(self._model, lambda: self._eager(batch))
        self._hidden = forward.result.at(inputs.max_num_tokens)
        if len(self._rows):
            self._logits = self._record_head(self._model.compute_logits)
            compute_best = getattr(self._model, "compute_best", None)
            self._best = None if compute_best is None else self._record_head(compute_best)
        self._forward, self._inputs = forward, inputs
        self._whole_step = self._without_splits(forward, self._logits)

    def _without_splits(self, forward: Recording, logits: Recording | None) -> WholeStep | None:
        best = self._best
        if logits is None or best is None or forward.splits or logits.splits or best.splits:
            return None
        results = (each.result.at(len(self._rows)) for each in (logits, best))
        return WholeStep(*forward.graphs, *logits.graphs, *best.graphs, self._rows, *results)

    def check(self, batch: InputBatch) -> None:
        """Hold a replay of a step that was not recorded to an eager one. Raises CaptureError where a bit differs.

        The replay comes first: it must not find the keys and values of the eager one in the cache.
        """
        assert self._forward is not None
        replayed = self._replay(self._forward, batch)
        rows = batch.sampled_token_rows
        logits = None if self._logits is None else self.logits(replayed, rows)
        eager = self._eager(batch)
        same_logits = logits is None or _same_bits(logits, self.compute_logits(eager[torch.from_numpy(rows)]))
        same_best = self._best is None or _is_best_of(self._replay_head(self._best, rows), logits)
        if not (_same_bits(replayed, eager) and same_logits and same_best):
            raise CaptureError(
                f"a replayed step of {batch.num_requests} requests and {batch.num_tokens} tokens differs from the same "
                "step run op by op"
            )

    def _record_head(self, head: Callable[[Tensor], Tensor]) -> Recording:
        native, num_rows = self._kernels.native, min(RECORDED_ROWS, len(self._rows))
        assert native is not None
        self._rows[:num_rows] = 0
        all_rows = torch.from_numpy(self._rows)
        recorder = Recorder(native, Arena(len(all_rows)), num_rows, token_arrays=[all_rows])
        hidden, rows = DenseWeight(self._hidden), all_rows[:num_rows]
        # Picking rows is what an embedding does.
        return recorder.record(self._model, lambda: head(self._kernels.embedding(rows, hidden)))


def _op_spans(recording: Recording | None) -> list[Span]:
    graphs = () if recording is None else recording.graphs
    return [
        Span(op, "ops", round(start * 1e9), round((end - start) * 1e9), {"where": where})
        for graph in graphs
        for op, where, start, end in graph.timings()
    ]


def _is_best_of(best: Tensor, logits: Tensor) -> bool:
    usable = logits.amax(dim=-1).isfinite()
    ids = best[usable, 1].long()
    return torch.equal(best[:, 0].isfinite(), usable) and torch.equal(ids, best_ids(logits[usable]))


def _same_bits(one: Tensor, other: Tensor) -> bool:
    # As bytes, for broken weights make NaNs, and those must be the same ones.
    return one.shape == other.shape and torch.equal(_bytes(one), _bytes(other))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def capture_steps(
    config: KVCacheConfig, *, max_num_tokens: int, max_num_requests: int, vocab_size: int
) -> Iterator[SchedulerOutput]:
    """Made-up steps: the one to be recorded, and those to check it with. No two tokens share a slot."""
    longest = min(max_num_tokens, config.max_model_len)
    for num_requests, num_tokens in ((1, RECORDED_TOKENS), *CHECKED_SIZES):
        requests, tokens = min(num_requests, max_num_requests), min(num_tokens, longest)
        while requests > 1 and (requests * tokens > max_num_tokens or not _fits(config, requests, tokens)):
            requests -= 1
        while tokens > 1 and not _fits(config, requests, tokens):
            tokens -= 1
        yield dummy_step(config, requests, tokens, vocab_size)


def _fits(config: KVCacheConfig, num_requests: int, num_tokens: int) -> bool:
    blocks = sum(cdiv(num_tokens, group.spec.block_size) for group in config.groups)
    return num_requests * blocks <= config.num_usable_blocks
