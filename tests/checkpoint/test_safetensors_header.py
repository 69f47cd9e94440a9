from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from octavo.checkpoint.safetensors_header import read_safetensors_folder, read_safetensors_header
from octavo.words.errors import CheckpointError, ModelNotFoundError, UnsupportedError


def file_bytes(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(**changes: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24], **changes}}


def test_a_file_written_by_the_reference_package_reads_back(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(5, dtype=np.float16)}
    save_file(arrays, tmp_path / "model.safetensors", metadata={"format": "pt"})
    file = read_safetensors_header(tmp_path / "model.safetensors")
    raw = (tmp_path / "model.safetensors").read_bytes()
    assert {name: (t.dtype, t.shape) for name, t in file.tensors.items()} == {"a": ("F32", (2, 3)), "b": ("F16", (5,))}
    for name, tensor in file.tensors.items():
        assert raw[tensor.offset : tensor.offset + tensor.nbytes] == arrays[name].tobytes()


FAULTS = {
    "empty": (b"", "at least 8"),
    "length_beyond_file": (file_bytes(entry(), b"0" * 24, length=10_000), "header of 10000 bytes in a file of"),
    "length_overflow": (file_bytes(entry(), b"0" * 24, length=2**64 - 1), "header length 18446744073709551615"),
    "no_json": (file_bytes(b"{not json"), "not valid JSON"),
    "no_utf8": (file_bytes(b'{"\xff\xff": 1}'), "not valid JSON"),
    "deep_json": (file_bytes(b"[" * 200_000), "nested too deeply|not valid JSON"),
    "no_object": (file_bytes([1, 2]), "not a JSON object"),
    "name_twice": (file_bytes(b'{"w": {}, "w": {}}'), "'w' occurs twice"),
    "entry_is_text": (file_bytes({"w": "x"}), "'w': header entry lacks"),
    "unknown_dtype": (file_bytes(entry(dtype="F7"), b"0" * 24), "'w': unknown dtype 'F7'; known: F64"),
    "negative_size": (file_bytes(entry(shape=[-2, -3]), b"0" * 24), r"'w': shape \[-2, -3\]"),
    "size_is_text": (file_bytes(entry(shape="23"), b"0" * 24), "'w': shape '23'"),
    "size_is_bool": (file_bytes(entry(shape=[True, 6]), b"0" * 24), "'w': shape"),
    "wrong_shape": (file_bytes(entry(shape=[2, 4]), b"0" * 24), r"'w': shape \[2, 4\] of F32 needs 32 bytes"),
    "overflowing_shape": (file_bytes(entry(shape=[2**62, 2**62]), b"0" * 24), "'w': shape"),
    "offsets_backwards": (file_bytes(entry(data_offsets=[24, 0]), b"0" * 24), r"'w': data_offsets \[24, 0\]"),
    "three_offsets": (file_bytes(entry(data_offsets=[0, 24, 48]), b"0" * 24), "'w': data_offsets"),
    "cut": (file_bytes(entry(), b"0" * 23), "'w': ends at byte .* the file is truncated"),
    "offset_past_the_end": (file_bytes(entry(data_offsets=[2**40, 2**40 + 24]), b"0" * 24), "'w': ends at byte"),
    "hole": (file_bytes(entry(data_offsets=[8, 32]), b"0" * 32), "'w': its range leaves a hole"),
    "overlap": (
        file_bytes(entry() | {"x": {"dtype": "U8", "shape": [8], "data_offsets": [20, 28]}}, b"0" * 28),
        "'x': its range overlaps",
    ),
    "rest": (file_bytes(entry(), b"0" * 40), "16 bytes after the last tensor"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_lying_header_is_one_error_that_names_file_and_place(fault: str, tmp_path: Path) -> None:
    raw, message = FAULTS[fault]
    path = tmp_path / "lying.safetensors"
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_safetensors_header(path)
    assert "lying.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "keep", [lambda size: size * 9 // 10, lambda size: size - 100], ids=["at_90_percent", "by_100"]
)
def test_a_truncated_model_names_a_tensor(keep: Callable[[int], int], succ: Path, tmp_path: Path) -> None:
    whole = (succ / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: keep(len(whole))])
    with pytest.raises(CheckpointError, match=r"model\.safetensors, tensor '.*truncated") as caught:
        read_safetensors_folder(tmp_path)
    assert caught.value.tensor is not None


def sharded(folder: Path) -> dict[str, str]:
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    for name, shard in shards.items():
        save_file({name: np.ones(4, dtype=np.float32)}, folder / shard)
    return shards


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_a_sharded_model_is_all_its_files(tmp_path: Path) -> None:
    write_index(tmp_path, sharded(tmp_path))
    assert [set(file.tensors) for file in read_safetensors_folder(tmp_path)] == [{"a"}, {"b"}]


def test_every_missing_shard_is_named(tmp_path: Path) -> None:
    shards = sharded(tmp_path)
    write_index(tmp_path, shards)
    for shard in shards.values():
        (tmp_path / shard).unlink()
    with pytest.raises(CheckpointError, match="missing shards: model-00001-of-00002.*model-00002-of-00002"):
        read_safetensors_folder(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"c": "model-00001-of-00002.safetensors"}, "tensor 'c': not in the file"),
        ({"c": "../../etc/passwd.safetensors"}, "tensor 'c': shard '../../etc/passwd.safetensors' is not"),
        ({"c": "/etc/passwd"}, "tensor 'c': shard '/etc/passwd' is not"),
        ({"c": 5}, "tensor 'c': shard 5 is not"),
    ],
)
def test_a_lying_index_is_an_error(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_index(tmp_path, sharded(tmp_path) | change)
    with pytest.raises(CheckpointError, match=message):
        read_safetensors_folder(tmp_path)


def test_a_tensor_in_two_files_is_an_error(tmp_path: Path) -> None:
    for name in ("x.safetensors", "y.safetensors"):
        save_file({"a": np.ones(4, dtype=np.float32)}, tmp_path / name)
    with pytest.raises(CheckpointError, match=r"y\.safetensors, tensor 'a': is in x\.safetensors too"):
        read_safetensors_folder(tmp_path)


def test_pickled_weights_are_refused_and_no_weights_are_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no weights"):
        read_safetensors_folder(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(UnsupportedError, match="pytorch_model.bin.*convert the model to safetensors"):
        read_safetensors_folder(tmp_path)
