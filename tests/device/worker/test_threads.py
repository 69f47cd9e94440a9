from __future__ import annotations

import pytest
import torch

from octavo.device.worker.threads import TorchThreads


def test_threads_are_set_inside_and_given_back() -> None:
    before = torch.get_num_threads()
    with TorchThreads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_it_may_be_used_again_with_another_number_set_before() -> None:
    before = torch.get_num_threads()
    threads = TorchThreads(before + 1)
    with threads:
        pass
    with TorchThreads(before + 2):
        with threads:
            assert torch.get_num_threads() == before + 1
        assert torch.get_num_threads() == before + 2
    assert torch.get_num_threads() == before


def test_threads_are_given_back_after_an_error() -> None:
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError, match="inside"), TorchThreads(before + 1):
        raise RuntimeError("inside")
    assert torch.get_num_threads() == before
