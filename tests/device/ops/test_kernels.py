"""The vocabulary as one value, and what the planner believes about it."""

from __future__ import annotations

import pytest

from octavo.device.ops.kernels import OP_NAMES, Kernels, load_kernels
from octavo.device.ops.table import OPS
from octavo.plan.native_ops import ADAPTER_OPS, MODEL_OPS, NATIVE_ISAS, NATIVE_OPS
from octavo.words.errors import ConfigError


def test_there_is_a_field_for_every_op() -> None:
    assert set(OP_NAMES) == set(OPS)
    assert set(OPS) >= MODEL_OPS


def test_the_planner_knows_which_ops_have_native_kernels() -> None:
    assert {name for name, backends in OPS.items() if "native" in backends} & (MODEL_OPS | ADAPTER_OPS) == NATIVE_OPS


def test_the_reference_misses_nothing() -> None:
    assert load_kernels("reference").missing == frozenset()


class TestNative:
    @pytest.fixture
    def kernels(self) -> Kernels:
        pytest.importorskip("octavo._native", reason="built without the native module")
        return load_kernels("native", num_threads=2)

    def test_ops_without_a_kernel_are_named_and_served_by_the_reference(self, kernels: Kernels) -> None:
        reference = load_kernels("reference")
        assert kernels.missing == set(OPS) - NATIVE_OPS
        for name in OP_NAMES:
            op = getattr(kernels, name).__wrapped__
            assert (op is getattr(reference, name)) == (name in kernels.missing)

    def test_the_planner_knows_the_instruction_sets_of_the_library(self, kernels: Kernels) -> None:
        assert set(kernels.native.library.available_isas()) <= NATIVE_ISAS.keys()

    def test_an_instruction_set_there_is_not_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="cpu_isa=mmx.*generic"):
            load_kernels("native", isa="mmx")
