from __future__ import annotations

import pytest
import torch

from octavo.device.worker.threads import torch_threads


def test_threads_are_set_inside_and_given_back() -> None:
    before = torch.get_num_threads()
    with torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_threads_are_given_back_after_an_error() -> None:
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError, match="inside"), torch_threads(before + 1):
        raise RuntimeError("inside")
    assert torch.get_num_threads() == before
