"""What ``octavo bench kernels`` asks of a worker: layers run alone, as a captured step runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.device.layers.linear import Linear
from octavo.device.worker.kernel_probe import KernelProbe
from tests.device.worker.test_worker import ready_worker

pytest.importorskip("octavo._native")


@pytest.fixture
def probe(succ: Path, monkeypatch: pytest.MonkeyPatch) -> KernelProbe:
    monkeypatch.setattr("octavo.device.worker.kernel_probe.COLD_BYTES", 1 << 20)
    return KernelProbe(ready_worker(succ))


def time_linear(probe: KernelProbe, name: str, rows: list[int], repeats: int) -> list[list[float]]:
    """Of a kind of layer that the model holds in one format."""
    (kind,) = (each for each in probe.linears() if each["name"] == name)
    return probe.time_linear(name, kind["format"], rows, repeats)


def test_row_counts_of_a_layer_are_measured_as_often_as_asked(probe: KernelProbe) -> None:
    times = time_linear(probe, "mlp.down", [1, 5, 2], 3)
    assert [len(seconds) for seconds in times] == [3, 3, 3]
    assert all(second > 0 for seconds in times for second in seconds)


def test_a_layer_is_called_from_python_once_however_often_it_is_measured(probe: KernelProbe) -> None:
    layers = [module for module in probe.worker.model.modules() if isinstance(module, Linear)]
    calls: list[Linear] = []
    for layer in layers:
        layer.register_forward_hook(lambda layer, *_: calls.append(layer))
    for kind in probe.linears():
        if kind["name"] != "lm_head":
            probe.time_linear(kind["name"], kind["format"], [1, 4], 3)
    assert sorted(map(id, calls)) == sorted(map(id, layers))


def test_a_format_that_torch_multiplies_is_measured_too(probe: KernelProbe) -> None:
    """Such layers split a captured step, and are called from Python there."""
    kernels = probe.worker.model.lm_head.kernels
    object.__setattr__(kernels, "lm_head", kernels.native.op("lm_head", kernels.lm_head, has_kernel=False))
    ((second,),) = time_linear(probe, "lm_head", [3], 1)
    assert second > 0


@pytest.mark.parametrize(("num_rows", "num_requests"), [(1, 1), (1, 3), (7, 1)])
def test_attention_is_measured_over_any_rows_and_requests(probe: KernelProbe, num_rows: int, num_requests: int) -> None:
    (layer,) = probe.attentions()
    seconds = probe.time_attention(layer["name"], 40, num_rows, num_requests, 2)
    assert len(seconds) == 2 and min(seconds) > 0
