from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.checkpoint.gguf_header import TENSOR_TYPES, GGUFArray, GGUFFile
from octavo.checkpoint.resolve import resolve_model
from octavo.words.errors import CheckpointError, UnsupportedError
from tests.checkpoint.gguf_bytes import ARRAY, STRING, U32, GGUFBytes, Info, array, pair, pairs, text

HUGE = 2**64 - 1


def good() -> GGUFBytes:
    return GGUFBytes(
        metadata=pairs({"general.architecture": "llama", "a.number": 7, "a.flag": True, "a.list": ["x", "", "ü"]}),
        tensors=[Info("first", (3, 2), b"\1" * 24), Info("second", (32,), b"\2" * 34, kind=8)],
    )


def test_a_header_reads_as_it_was_written(tmp_path: Path) -> None:
    file = GGUFFile.open(good().write(tmp_path / "m.gguf"))
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["a.number"] == 7
    assert file.metadata["a.flag"] is True
    assert list(file.metadata["a.list"]) == ["x", "", "ü"]
    assert file.tensors["first"].shape == (2, 3)
    assert (file.tensors["second"].type, file.tensors["second"].nbytes) == ("Q8_0", 34)
    assert file.read(file.tensors["second"]) == b"\2" * 34


def test_version_2_and_another_alignment_are_read(tmp_path: Path) -> None:
    written = good()
    written.version, written.alignment = 2, 128
    written.metadata.append(pair("general.alignment", U32, 128))
    file = GGUFFile.open(written.write(tmp_path / "m.gguf"))
    assert file.version == 2
    assert file.tensors["second"].offset % 128 == 0
    assert file.read(file.tensors["first"]) == b"\1" * 24


def lie(**changes: Any) -> Callable[[], bytes]:
    def build() -> bytes:
        written = good()
        for name, value in changes.items():
            setattr(written, name, value)
        return written.build()

    return build


def with_pair(raw: bytes) -> Callable[[], bytes]:
    return lie(metadata=[raw])


def with_tensor(info: Info) -> Callable[[], bytes]:
    return lie(tensors=[info])


FAULTS = {
    "empty": (lambda: b"", "shorter than a GGUF header"),
    "magic": (lie(magic=b"GGML"), "magic"),
    "many_pairs": (lie(num_pairs=HUGE), "metadata entries needs"),
    "one_pair_too_many": (lie(num_pairs=1000), "metadata"),
    "many_tensors": (lie(num_tensors=HUGE), "tensor infos needs"),
    "one_tensor_too_many": (lie(num_tensors=3), "."),
    "long_key": (with_pair(struct.pack("<Q", HUGE) + b"key"), "a metadata key needs"),
    "long_string": (with_pair(text("k") + struct.pack("<IQ", STRING, 2**40) + b"x"), "'k' needs"),
    "string_is_no_text": (with_pair(pair("k", STRING, b"\xff\xfe")), "not UTF-8"),
    "huge_array": (with_pair(array("k", U32, [1], count=2**61)), "elements of 'k'"),
    "huge_string_array": (with_pair(array("k", STRING, ["x"], count=2**60)), "strings of 'k'"),
    "string_array_with_a_lying_string": (
        with_pair(array("k", STRING, ["x", "y"], count=3) + struct.pack("<Q", HUGE)),
        "a string of 'k' ends past the end|the strings of 'k' needs",
    ),
    "array_of_arrays": (with_pair(text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1)), "arrays in arrays"),
    "unknown_value_type": (with_pair(text("k") + struct.pack("<I", 99)), "unknown value type 99"),
    "unknown_element_type": (with_pair(text("k") + struct.pack("<IIQ", ARRAY, 99, 1)), "unknown element type 99"),
    "key_twice": (lie(metadata=pairs({"k": 1}) * 2), "'k' occurs twice"),
    "alignment_0": (with_pair(pair("general.alignment", U32, 0)), "general.alignment is 0"),
    "alignment_48": (with_pair(pair("general.alignment", U32, 48)), "general.alignment is 48"),
    "tensor_twice": (lie(tensors=[Info("t", (8,), b"0" * 32)] * 2), "'t': occurs twice"),
    "no_dimensions": (with_tensor(Info("t", (), b"0" * 32)), "'t': 0 dimensions"),
    "five_dimensions": (with_tensor(Info("t", (1, 1, 1, 1, 1), b"0" * 32)), "'t': 5 dimensions"),
    "empty_dimension": (with_tensor(Info("t", (8, 0), b"0" * 32)), "'t': impossible shape"),
    "overflowing_shape": (with_tensor(Info("t", (2**40, 2**40), b"0" * 32)), "'t': impossible shape"),
    "broken_blocks": (with_tensor(Info("t", (33,), b"0" * 64, kind=8)), "'t': rows of 33 are not whole Q8_0 blocks"),
    "unaligned_offset": (with_tensor(Info("t", (2,), b"0" * 32, offset=8)), "'t': offset 8"),
    "offset_past_the_end": (with_tensor(Info("t", (2,), b"0" * 32, offset=2**40)), "'t': ends at byte .* truncated"),
    "wrong_shape": (with_tensor(Info("t", (800,), b"0" * 32)), "'t': ends at byte .* truncated"),
    "overlap": (
        lie(tensors=[Info("t", (16,), b"0" * 64), Info("u", (8,), b"0" * 32, offset=32)]),
        "'u': its data overlaps",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_lying_header_is_one_error_that_names_file_and_place(fault: str, tmp_path: Path) -> None:
    build, message = FAULTS[fault]
    path = tmp_path / "lying.gguf"
    path.write_bytes(build())
    with pytest.raises(CheckpointError, match=message) as caught:
        GGUFFile.open(path)
    assert "lying.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_shorter_file_is_an_error(tmp_path: Path) -> None:
    whole = good().build()
    used = len(whole) - 30  # the last tensor's 34 bytes are padded to 64
    for length in range(used):
        path = tmp_path / "cut.gguf"
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="cut.gguf"):
            GGUFFile.open(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 1}, "GGUF version 1"),
        ({"version": 0x03000000}, "big-endian"),
        ({"tensors": [Info("t", (8,), b"0" * 32, kind=77)]}, "'t': unknown GGUF tensor type 77; known: F32"),
    ],
)
def test_what_is_known_but_cannot_be_read_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(lie(**change)())
    with pytest.raises(UnsupportedError, match=message):
        GGUFFile.open(path)


def test_text_that_is_not_utf8_inside_an_array_is_an_error_when_it_is_read(tmp_path: Path) -> None:
    path = GGUFBytes(metadata=[array("k", STRING, ["ok", b"\xff"])]).write(tmp_path / "m.gguf")
    values: GGUFArray = GGUFFile.open(path).metadata["k"]
    assert len(values) == 2
    with pytest.raises(CheckpointError, match="element 1 of 'k' is not UTF-8"):
        list(values)


def test_block_sizes_agree_with_the_reference_package() -> None:
    gguf = pytest.importorskip("gguf")
    for number, kind in TENSOR_TYPES.items():
        reference = gguf.GGMLQuantizationType(number)
        assert reference.name == kind.name
        assert gguf.GGML_QUANT_SIZES[reference] == (kind.block_size, kind.block_bytes)


def test_a_real_vocabulary_reads_as_the_reference_package_reads_it(smollm2: str) -> None:
    gguf = pytest.importorskip("gguf")
    path = resolve_model(smollm2).path
    ours, reference = GGUFFile.open(path), gguf.GGUFReader(path)
    assert set(ours.metadata) == {key for key in reference.fields if not key.startswith("GGUF.")}
    for key, value in ours.metadata.items():
        expected = reference.fields[key].contents()
        assert (list(value) if isinstance(value, GGUFArray) else value) == expected, key
    for tensor in reference.tensors:
        found = ours.tensors[tensor.name]
        assert found.shape == tuple(reversed(tensor.shape.tolist()))
        assert (found.type, found.offset, found.nbytes) == (
            tensor.tensor_type.name,
            tensor.data_offset,
            tensor.n_bytes,
        )


@pytest.mark.parametrize("cut", [lambda size: size * 9 // 10, lambda size: size - 100], ids=["at_90_percent", "by_100"])
def test_a_truncated_real_file_names_a_tensor(cut: Callable[[int], int], smollm2: str, tmp_path: Path) -> None:
    whole = resolve_model(smollm2).path.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: cut(len(whole))])
    with pytest.raises(CheckpointError, match=r"cut\.gguf, tensor '.*truncated") as caught:
        GGUFFile.open(path)
    assert caught.value.tensor is not None
