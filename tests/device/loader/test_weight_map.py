from __future__ import annotations

import pytest

from octavo.device.layers.weight_map import GGUF_NAMES, ROPE_TABLES, Rename, Skip, Stack, WeightMap
from octavo.device.loader.weight_map import NameResolver, Placement

ATTENTION = "model.layers.{i}.self_attn"
MAP = WeightMap(
    rules=(
        *ROPE_TABLES,
        Rename("model.norm.weight", "norm.weight"),
        Rename(f"{ATTENTION}.o_proj.weight", "layers.{i}.out.weight", shard=1),
        Rename("model.layers.{i}.experts.{e}.up.weight", "layers.{i}.experts.{e}.up.weight"),
        Stack("layers.{i}.qk.weight", ((f"{ATTENTION}.q_proj.weight", 8), (f"{ATTENTION}.k_proj.weight", 4)), shard=0),
        Skip("vision.*"),
    ),
    prefixes=(("language_model.model.", "model."),),
    gguf_names=GGUF_NAMES,
    gguf_interleaved={f"{ATTENTION}.k_proj.weight": 2},
)
HF, GGUF = NameResolver(MAP, gguf=False), NameResolver(MAP, gguf=True)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("model.norm.weight", Placement("norm.weight")),
        ("language_model.model.norm.weight", Placement("norm.weight")),
        ("model.layers.12.self_attn.o_proj.weight", Placement("layers.12.out.weight", shard=1)),
        ("model.layers.3.experts.10.up.weight", Placement("layers.3.experts.10.up.weight")),
        ("model.layers.3.self_attn.q_proj.weight", Placement("layers.3.qk.weight", 0, 8, shard=0)),
        ("model.layers.3.self_attn.k_proj.weight", Placement("layers.3.qk.weight", 8, 4, shard=0)),
        ("model.layers.3.self_attn.rotary_emb.inv_freq", None),
        ("vision.blocks.0.weight", None),
    ],
)
def test_a_hugging_face_name_has_its_place(name: str, place: Placement | None) -> None:
    assert HF.resolve(name) == place


def test_a_gguf_name_has_the_same_place_and_its_heads() -> None:
    assert GGUF.resolve("blk.3.attn_q.weight") == Placement("layers.3.qk.weight", 0, 8, shard=0)
    assert GGUF.resolve("blk.3.attn_k.weight") == Placement("layers.3.qk.weight", 8, 4, 0, interleaved_heads=2)
    assert GGUF.resolve("rope_freqs.weight") is None


@pytest.mark.parametrize("name", ["model.layers.x.self_attn.o_proj.weight", "blk.3.attn_q.weight", "norm.weight", ""])
def test_an_unknown_name_is_a_key_error(name: str) -> None:
    with pytest.raises(KeyError):
        HF.resolve(name)


def test_a_parameter_knows_what_it_is_made_of_in_the_words_of_the_file() -> None:
    assert HF.sources("layers.5.qk.weight") == [
        ("model.layers.5.self_attn.q_proj.weight", 0),
        ("model.layers.5.self_attn.k_proj.weight", 8),
    ]
    assert GGUF.sources("layers.5.qk.weight") == [("blk.5.attn_q.weight", 0), ("blk.5.attn_k.weight", 8)]


def test_two_rules_for_one_name_are_our_bug() -> None:
    with pytest.raises(AssertionError, match="two rules for 'a'"):
        NameResolver(WeightMap(rules=(Rename("a", "b"), Skip("a"))), gguf=False)
