"""Weights packed while a model loads: the same numbers, once in memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from octavo.device.layers.embedding import Embedding, LMHead
from octavo.device.layers.linear import Linear
from octavo.device.layers.quantization.native_dense import NativeDense
from octavo.device.layers.quantization.unquantized import UNQUANTIZED
from octavo.device.layers.weight_map import WeightMap
from octavo.device.loader import load
from octavo.device.loader.load import load_weights
from octavo.device.ops.kernels import REFERENCE_KERNELS, Kernels, load_kernels
from octavo.device.worker.memory import parameter_bytes

pytest.importorskip("octavo._native", reason="built without the native module")

VOCAB, WIDTH = 50, 24


class TiedModel(nn.Module):
    weight_map = WeightMap(rules=())

    def __init__(self, kernels: Kernels) -> None:
        super().__init__()
        method = UNQUANTIZED if kernels.native is None else NativeDense(kernels.native)
        form = {"dtype": torch.float32, "method": method, "kernels": kernels}
        self.embed = Embedding(VOCAB, WIDTH, scale=3.0, **form)
        self.layer = Linear(WIDTH, WIDTH, bias=True, **form)
        self.lm_head = LMHead(self.embed, kernels=kernels)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.layer(self.embed(token_ids)))


@pytest.mark.parametrize("batch_bytes", [1, load.BATCH_BYTES])
def test_a_packed_model_computes_what_a_plain_one_does(batch_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "BATCH_BYTES", batch_bytes)
    models = [TiedModel(REFERENCE_KERNELS), TiedModel(load_kernels("native"))]
    nowhere = SimpleNamespace()
    reports = [load_weights(model, nowhere, load_format="dummy", seed=1) for model in models]  # type: ignore[arg-type]
    assert [report.num_tensors for report in reports] == [3, 3]
    token_ids = torch.tensor([0, 49, 7])
    torch.testing.assert_close(models[1](token_ids), models[0](token_ids))


def test_packing_drops_the_parameters_and_counts_what_it_keeps() -> None:
    model = TiedModel(load_kernels("native"))
    plain = parameter_bytes(model)
    load_weights(model, SimpleNamespace(), load_format="dummy")  # type: ignore[arg-type]
    assert not list(model.parameters())
    # Columns are padded to whole panels of 16, biases are float32.
    assert plain <= parameter_bytes(model) <= 4 * (64 * WIDTH + 32 * WIDTH + 32)
