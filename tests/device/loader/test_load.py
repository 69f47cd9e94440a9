from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from octavo.checkpoint.resolve import Checkpoint, resolve_model
from octavo.device.layers.weight_map import GGUF_NAMES, ROPE_TABLES, Rename, Skip, Stack, WeightMap
from octavo.device.loader.load import LoadReport, load_weights
from octavo.words.errors import CheckpointError, UnsupportedError
from tests.checkpoint.gguf_bytes import GGUFBytes, Info, pairs

HIDDEN, HEADS, KV_HEADS, HEAD_SIZE, VOCAB = 32, 4, 2, 8, 50
ATTENTION = "model.layers.{i}.self_attn"
Weights = dict[str, Tensor]


class TwoLayers(nn.Module):
    """Stacked projections with biases, a norm and an embedding: every kind of rule, no forward."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        rows = (HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE)
        self.embed = nn.Embedding(VOCAB, HIDDEN, dtype=dtype)
        self.layers = nn.ModuleList(nn.Linear(HIDDEN, sum(rows), dtype=dtype) for _ in range(2))
        self.norm = nn.RMSNorm(HIDDEN, dtype=dtype)
        names = [f"{ATTENTION}.{each}_proj" for each in "qk"]
        heads = dict(zip(names, (HEADS, KV_HEADS), strict=True))
        self.weight_map = WeightMap(
            rules=(
                *ROPE_TABLES,
                Rename("model.embed_tokens.weight", "embed.weight", shard=0),
                Rename("model.norm.weight", "norm.weight"),
                Skip("lm_head.weight"),
                *(
                    Stack(
                        f"layers.{{i}}.{kind}",
                        tuple((f"{n}.{kind}", r) for n, r in zip(names, rows, strict=True)),
                        shard=0,
                    )
                    for kind in ("weight", "bias")
                ),
            ),
            gguf_names=GGUF_NAMES,
            gguf_interleaved={f"{n}.{kind}": count for n, count in heads.items() for kind in ("weight", "bias")},
        )
        for parameter in self.parameters():
            nn.init.constant_(parameter, 99.0)


def weights() -> Weights:
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    found = {
        "model.embed_tokens.weight": random(VOCAB, HIDDEN),
        "model.norm.weight": random(HIDDEN),
        "lm_head.weight": random(VOCAB, HIDDEN),
    }
    for layer in range(2):
        for name, rows in (("q", HEADS * HEAD_SIZE), ("k", KV_HEADS * HEAD_SIZE)):
            found[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = random(rows, HIDDEN)
            found[f"model.layers.{layer}.self_attn.{name}_proj.bias"] = random(rows)
    return found


def folder_of(path: Path, tensors: Weights) -> Checkpoint:
    (path / "config.json").write_text("{}")
    save_file(tensors, path / "model.safetensors")
    return resolve_model(str(path))


def expected(dtype: torch.dtype = torch.float32) -> Weights:
    found = weights()
    stacked = {
        f"layers.{layer}.{kind}": torch.cat(
            [found[f"model.layers.{layer}.self_attn.{name}_proj.{kind}"] for name in "qk"]
        )
        for layer in range(2)
        for kind in ("weight", "bias")
    }
    plain = {"embed.weight": found["model.embed_tokens.weight"], "norm.weight": found["model.norm.weight"]}
    return {name: tensor.to(dtype) for name, tensor in (stacked | plain).items()}


def assert_holds(model: nn.Module, tensors: Weights) -> None:
    parameters = dict(model.named_parameters())
    assert set(parameters) == set(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(parameters[name], tensor), name


def test_safetensors_fill_every_parameter(tmp_path: Path) -> None:
    model = TwoLayers()
    report = load_weights(model, folder_of(tmp_path, weights()))
    assert_holds(model, expected())
    assert report == LoadReport(10, sum(p.nbytes for p in model.parameters()), report.seconds)


def test_a_bar_counts_the_files_of_a_sharded_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards: tuple[Weights, Weights] = ({}, {})
    for place, (name, tensor) in enumerate(weights().items()):
        shards[place % 2][name] = tensor
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, tmp_path / name)
    weight_map = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "config.json").write_text("{}")
    model = TwoLayers()
    load_weights(model, resolve_model(str(tmp_path)))
    assert_holds(model, expected())
    assert re.search(r"Loading safetensors checkpoint shards: 100%.* 2/2 ", capsys.readouterr().err)


def test_a_single_file_needs_no_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_weights(TwoLayers(), folder_of(tmp_path, weights()))
    assert capsys.readouterr().err == ""


def test_stored_and_wanted_dtypes_may_differ(tmp_path: Path) -> None:
    model = TwoLayers(torch.bfloat16)
    load_weights(model, folder_of(tmp_path, weights()))
    assert_holds(model, expected(torch.bfloat16))
    (tmp_path / "half").mkdir()
    model = TwoLayers()
    load_weights(model, folder_of(tmp_path / "half", {n: t.bfloat16() for n, t in weights().items()}))
    assert_holds(model, {name: tensor.bfloat16().float() for name, tensor in expected().items()})


def test_tensors_at_odd_offsets_are_read(tmp_path: Path) -> None:
    checkpoint = folder_of(tmp_path, weights())
    raw = (tmp_path / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = raw[8 : 8 + length].rstrip() + b" "
    header += b" " * ((len(header) + 8) % 2 == 0)  # the data begin at an odd byte
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + length :])
    model = TwoLayers()
    load_weights(model, checkpoint)
    assert_holds(model, expected())


def interleave(tensor: Tensor, heads: int) -> Tensor:
    """What the GGUF converter does to Llama's q and k."""
    return tensor.reshape(heads, 2, -1, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape).contiguous()


def gguf_of(path: Path, change: Callable[[str, Tensor], Info] | None = None, **extra: Info) -> Checkpoint:
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    infos = []
    for name, tensor in weights().items():
        stem, kind = name.rsplit(".", 1)
        found = names.get(stem, stem.replace("model.layers", "blk").replace("self_attn.", "attn_").replace("_proj", ""))
        if ".attn_" in found:
            tensor = interleave(tensor, HEADS if found.endswith("q") else KV_HEADS)
        info = (change or stored_f32)(f"{found}.{kind}", tensor)
        infos.append(info)
    file = GGUFBytes(pairs({"general.architecture": "llama"}), [*infos, *extra.values()])
    return resolve_model(str(file.write(path / "m.gguf")))


def stored_f32(name: str, tensor: Tensor) -> Info:
    return Info(name, tuple(reversed(tensor.shape)), tensor.numpy().tobytes())


def stored_q8_0(name: str, tensor: Tensor) -> Info:
    gguf = pytest.importorskip("gguf")
    if tensor.dim() == 1:
        return stored_f32(name, tensor)
    raw = gguf.quants.quantize(tensor.numpy(), gguf.GGMLQuantizationType.Q8_0)
    return Info(name, tuple(reversed(tensor.shape)), raw.tobytes(), kind=8)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_gguf_fills_every_parameter_and_puts_rotary_halves_back(num_threads: int, tmp_path: Path) -> None:
    rope_table = Info("rope_freqs.weight", (4,), b"\0" * 16)
    model = TwoLayers()
    load_weights(model, gguf_of(tmp_path, rope=rope_table), num_threads=num_threads)
    assert_holds(model, expected())


def test_quantised_rows_are_put_back_before_they_are_dequantised(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType.Q8_0
    model = TwoLayers()
    load_weights(model, gguf_of(tmp_path, stored_q8_0))
    rounded = {
        name: torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(t.numpy(), kind), kind))
        if t.dim() > 1
        else t
        for name, t in expected().items()
    }
    assert_holds(model, rounded)


def test_large_gguf_tensors_are_the_same_with_any_number_of_threads(smollm2: str) -> None:
    class Embedding(nn.Module):
        weight_map = WeightMap(
            rules=(Rename("token_embd.weight", "weight"), Skip("blk.*"), Skip("output_norm.weight")),
        )

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((49152, 576), 99.0))

    gguf = pytest.importorskip("gguf")
    checkpoint = resolve_model(smollm2)
    tensor = next(t for t in gguf.GGUFReader(checkpoint.path).tensors if t.name == "token_embd.weight")
    reference = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    for num_threads in (1, 3):
        model = Embedding()
        load_weights(model, checkpoint, num_threads=num_threads)
        assert np.array_equal(model.weight.detach().numpy(), reference)


Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({Q: None}, f"model.safetensors, tensor '{Q}': is missing"),
        ({Q: None, "model.norm.weight": None}, r"is missing \(and 1 more\)"),
        (
            {"model.layers.2.self_attn.q_proj.weight": torch.ones(32, 32)},
            "layers.2.*unexpected: the model has no place",
        ),
        ({"surprise": torch.ones(3)}, "tensor 'surprise': unexpected"),
        ({Q: torch.ones(31, 32)}, rf"tensor '{Q}': has shape \[31, 32\]; layers.1.weight needs \[32, 32\]"),
        ({Q: torch.ones(32 * 32)}, rf"tensor '{Q}': has shape \[1024\]"),
    ],
)
def test_a_checkpoint_that_is_not_the_model_changes_nothing(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    tensors = {name: tensor for name, tensor in (weights() | change).items() if tensor is not None}
    model = TwoLayers()
    with pytest.raises(CheckpointError, match=message) as caught:
        load_weights(model, folder_of(tmp_path, tensors))
    assert "\n" not in str(caught.value)
    assert all((parameter == 99.0).all() for parameter in model.parameters())


def test_a_tensor_under_two_names_is_an_error(tmp_path: Path) -> None:
    model = TwoLayers()
    model.weight_map = WeightMap(model.weight_map.rules, prefixes=(("language_model.", ""),))
    twice = weights() | {"language_model.model.norm.weight": torch.ones(HIDDEN)}
    with pytest.raises(CheckpointError, match="fills the same weights as"):
        load_weights(model, folder_of(tmp_path, twice))


def test_a_missing_gguf_tensor_is_named_as_the_file_would(tmp_path: Path) -> None:
    checkpoint = gguf_of(
        tmp_path, lambda name, t: stored_f32(name.replace("blk.1.attn_k.bias", "rope_freqs.weight"), t)
    )
    with pytest.raises(CheckpointError, match=r"m\.gguf, tensor 'blk\.1\.attn_k\.bias': is missing"):
        load_weights(TwoLayers(), checkpoint)


def test_a_storage_type_without_a_reader_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    model = TwoLayers()
    embedding = weights() | {"model.norm.weight": torch.ones(HIDDEN, dtype=torch.int8)}
    with pytest.raises(UnsupportedError, match="tensor 'model.norm.weight': weights stored as I8"):
        load_weights(model, folder_of(tmp_path, embedding))
    assert all((parameter == 99.0).all() for parameter in model.parameters())


@pytest.mark.parametrize(
    "keep", [lambda size: size * 9 // 10, lambda size: size - 100], ids=["at_90_percent", "by_100"]
)
@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_a_truncated_file_changes_nothing(kind: str, keep: Callable[[int], int], tmp_path: Path) -> None:
    """ST04: the one error names the file and the tensor that is cut."""
    checkpoint = folder_of(tmp_path, weights()) if kind == "hf" else gguf_of(tmp_path)
    path = tmp_path / "model.safetensors" if kind == "hf" else checkpoint.path
    whole = path.read_bytes()
    path.write_bytes(whole[: keep(len(whole))])
    model = TwoLayers()
    with pytest.raises(CheckpointError, match=rf"{path.name}, tensor '.*truncated"):
        load_weights(model, checkpoint)
    assert all((parameter == 99.0).all() for parameter in model.parameters())


def test_a_map_that_leaves_rows_unfilled_is_our_bug(tmp_path: Path) -> None:
    model = TwoLayers()
    model.layers = nn.ModuleList(nn.Linear(HIDDEN, 49) for _ in range(2))
    with pytest.raises(AssertionError, match="unfilled"):
        load_weights(model, folder_of(tmp_path, weights()))


def test_dummy_weights_need_no_file_and_depend_on_seed_and_name_only(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({}))
    checkpoint = resolve_model(str(tmp_path))

    def dummy(seed: int, dtype: torch.dtype = torch.float32) -> Weights:
        model = TwoLayers(dtype)
        load_weights(model, checkpoint, load_format="dummy", seed=seed)
        return dict(model.named_parameters())

    first, again, other, narrow = dummy(0), dummy(0), dummy(1), dummy(0, torch.bfloat16)
    for name, values in first.items():
        assert torch.equal(values, again[name])
        assert not torch.equal(values, other[name])
        assert torch.equal(values.bfloat16(), narrow[name])
    assert not torch.equal(first["layers.0.weight"], first["layers.1.weight"])
    assert abs(first["norm.weight"].mean() - 1.0) < 0.1
    assert first["embed.weight"].std() < 0.1
