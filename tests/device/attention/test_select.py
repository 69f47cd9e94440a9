"""Choosing a backend, and saying why one does not fit."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest

from octavo.device.attention.backend import AttentionNeeds, Support
from octavo.device.attention.select import load_backend, select_backend
from octavo.device.attention.table import BACKENDS
from octavo.device.ops.native.context import NativeContext
from octavo.words.errors import UnsupportedError

NEEDS = AttentionNeeds(device="cpu", head_size=64, dtype="float32", kv_cache_dtype="float32")


def test_every_entry_of_the_table_resolves_to_a_backend_of_that_name() -> None:
    for name in BACKENDS:
        assert load_backend(name).name == name


def test_auto_takes_the_first_backend_that_fits() -> None:
    assert select_backend("auto", NEEDS).name == "reference"
    native = NativeContext(library=ModuleType("fake"), pool=None)
    assert select_backend("auto", NEEDS, native).name == "cpu"
    assert select_backend("auto", replace(NEEDS, head_size=68), native).name == "reference"


def test_a_backend_that_does_not_fit_is_refused_with_its_reasons() -> None:
    with pytest.raises(UnsupportedError) as error:
        select_backend("auto", replace(NEEDS, head_size=68, kv_cache_dtype="uint8"))
    assert error.value.reasons == (
        "cpu: KV cache dtype uint8 is not one of float32, bfloat16, int8",
        "cpu: it needs native kernels, and this engine runs on others",
        "cpu: head size 68 is not a multiple of 8",
        "reference: KV cache dtype uint8 is not one of float32, bfloat16, float16, int8",
    )


def test_an_unknown_backend_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(UnsupportedError, match="'flash' does not exist; there are cpu, reference"):
        load_backend("flash")


def test_support_lists_every_reason() -> None:
    support = Support(devices=("cuda",), head_sizes=(64, 128), block_size_multiple=16, sinks=False)
    needs = AttentionNeeds(
        device="cpu", head_size=80, dtype="float32", kv_cache_dtype="float32", block_size=24, sinks=True, softcap=True
    )
    assert support.reasons_against(needs) == [
        "device cpu is not one of cuda",
        "head size 80 is not one of 64, 128",
        "block size 24 is not a multiple of 16",
        "sinks is not supported",
    ]
    assert support.reasons_against(AttentionNeeds(device="cuda", head_size=64, dtype="x", kv_cache_dtype="y")) == []
