"""Texts pooled into numbers by a whole engine, against Transformers on the same weights in float32."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as LibraryTokenizer
from torch import Tensor
from transformers import AutoModel

from octavo import LLM, AsyncLLM, EngineArgs, PoolingParams, PoolingRequestOutput, SamplingParams
from octavo.words.errors import OctavoError, RequestError
from tests.succ import EOS
from tests.tiny_encoders import FAMILIES, MAX_TOKENS, hidden_states, label_logits, make_encoder, write_pooling
from tests.tiny_models import save_tiny_model

TEXTS = ["the cat sits", "a", "the dog runs, the cats sit?", "z" * 40, "0 1 2 3 4 5 6 7 8 9", "sitting"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("encoder") / "bert")


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), dtype="float32") as llm:
        yield llm


def numbers(output: PoolingRequestOutput) -> Tensor:
    assert output.error is None and output.finished
    return torch.tensor(output.outputs.data)


def close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, atol=2e-5, rtol=1e-4)


def test_embeddings_are_those_of_transformers(encoder: LLM, folder: Path) -> None:
    for output in encoder.embed(TEXTS, use_tqdm=False):
        expected = F.normalize(hidden_states(folder, output.prompt_token_ids).mean(0), dim=0)
        assert close(numbers(output), expected)


def test_a_text_has_the_same_vector_alone_and_in_a_batch(encoder: LLM) -> None:
    together = encoder.embed(TEXTS * 8, use_tqdm=False)
    for text, output in zip(TEXTS, together, strict=False):
        alone = encoder.embed(text, use_tqdm=False)[0]
        assert (
            numbers(alone).equal(numbers(output))
            if encoder.info.plan.batch_invariant
            else close(numbers(alone), numbers(output))
        )
        assert len(alone.prompt_token_ids) == len(output.prompt_token_ids)


def test_a_step_of_an_encoder_is_one_native_call_and_gives_what_eager_steps_give(encoder: LLM, folder: Path) -> None:
    if encoder.info.plan.kernels != "native":
        pytest.skip("built without the native module")
    assert encoder.info.plan.batch_invariant
    assert encoder.info.graph is not None and encoder.info.graph.captured and encoder.info.graph.splits == []
    (before,) = encoder.collective_rpc("graph_counters")
    vectors = encoder.embed(TEXTS * 8, use_tqdm=False)
    (after,) = encoder.collective_rpc("graph_counters")
    assert after["replays"] > before["replays"] and after["eager_steps"] == before["eager_steps"]
    with LLM(str(folder), dtype="float32", enforce_eager=True, num_threads=1) as eager:
        for one, other in zip(vectors, eager.embed(TEXTS * 8, use_tqdm=False), strict=True):
            assert numbers(one).equal(numbers(other))


def test_texts_of_any_lengths_share_a_step_without_padding(encoder: LLM) -> None:
    encoder._engine.start_profile()
    outputs = encoder.embed(TEXTS, use_tqdm=False)
    steps = [span.facts["requests"] for span in encoder._engine.stop_profile() if span.name == "schedule"]
    (rows,) = (step for step in steps if step)
    lengths = [len(output.prompt_token_ids) for output in outputs]
    assert [number for _, number in rows] == lengths and len(set(lengths)) > 3


def test_pairs_and_single_texts_share_a_step(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "cross", num_labels=1)
    with LLM(str(folder), dtype="float32") as llm:
        alone = [llm.score("the cat", text, use_tqdm=False)[0] for text in TEXTS[:4]]
        single = llm.classify(TEXTS[0], use_tqdm=False)[0]
        together = llm.score("the cat", TEXTS[:4], use_tqdm=False)
        assert all(close(numbers(one), numbers(other)) for one, other in zip(alone, together, strict=True))
        assert close(numbers(llm.classify(TEXTS[0], use_tqdm=False)[0]), numbers(single)), "no types are left over"


def test_pooling_kinds_are_read_from_the_checkpoint(tmp_path: Path) -> None:
    for kind, index in (("cls", 0), ("last", -1)):
        folder = make_encoder(tmp_path / kind, pooling=kind, normalize=False)
        with LLM(str(folder), dtype="float32") as llm:
            output = llm.embed("the cat sits", use_tqdm=False)[0]
        assert close(numbers(output), hidden_states(folder, output.prompt_token_ids)[index])


def test_each_token_has_a_vector(encoder: LLM, folder: Path) -> None:
    output = encoder.encode("the cat", PoolingParams(task="token_embed", use_activation=False), use_tqdm=False)[0]
    expected = hidden_states(folder, output.prompt_token_ids)
    assert close(numbers(output).view(expected.shape), expected)


def test_a_shortened_vector_has_length_one_again(encoder: LLM) -> None:
    whole = numbers(encoder.embed("the cat", use_tqdm=False)[0])
    short = numbers(encoder.embed("the cat", dimensions=16, use_tqdm=False)[0])
    assert close(short, F.normalize(whole[:16], dim=0))


def with_config(folder: Path, tmp_path: Path, **changes: object) -> Path:
    """A copy of a model, with entries of its config.json changed and those that are None left out."""
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text()) | changes
    (copy / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return copy


def test_vectors_are_shortened_to_the_listed_lengths_alone(encoder: LLM, folder: Path, tmp_path: Path) -> None:
    listed = with_config(folder, tmp_path, is_matryoshka=None, matryoshka_dimensions=[8, 24])
    with LLM(str(listed), dtype="float32") as llm:
        for size in (8, 24):
            short = numbers(llm.embed("the cat", dimensions=size, use_tqdm=False)[0])
            assert short.equal(numbers(encoder.embed("the cat", dimensions=size, use_tqdm=False)[0]))
            assert len(short) == size
        for size in (7, 16, 48):
            with pytest.raises(RequestError, match=f"dimensions can be 8, 24 with this model; got {size}") as caught:
                llm.embed("the cat", dimensions=size, use_tqdm=False)
            assert caught.value.param == "dimensions"
    with LLM(str(listed), dtype="float32", matryoshka=True) as llm:
        assert len(numbers(llm.embed("the cat", dimensions=16, use_tqdm=False)[0])) == 16


def test_a_model_that_says_nothing_of_shorter_vectors_is_told_by_the_user(
    encoder: LLM, folder: Path, tmp_path: Path
) -> None:
    silent = with_config(folder, tmp_path, is_matryoshka=None)
    with LLM(str(silent), dtype="float32") as llm, pytest.raises(RequestError, match="--matryoshka"):
        llm.embed("the cat", dimensions=16, use_tqdm=False)
    with LLM(str(silent), dtype="float32", matryoshka=True) as llm:
        short = numbers(llm.embed("the cat", dimensions=16, use_tqdm=False)[0])
        assert short.equal(numbers(encoder.embed("the cat", dimensions=16, use_tqdm=False)[0]))
        with pytest.raises(RequestError, match="at most 48"):
            llm.embed("the cat", dimensions=49, use_tqdm=False)


def test_the_default_prompt_of_sentence_transformers_stands_before_every_text(
    encoder: LLM, folder: Path, tmp_path: Path
) -> None:
    """As its ``encode`` has it; token ids are taken as they are, and prompts that nobody asked for are left out."""
    copy = with_config(folder, tmp_path)
    prompts = {"prompts": {"query": "the dog runs. ", "document": "a. "}}
    ids = encoder.get_tokenizer().encode("the cat")
    for name, before in ((None, ""), ("query", "the dog runs. ")):
        (copy / "config_sentence_transformers.json").write_text(json.dumps({**prompts, "default_prompt_name": name}))
        with LLM(str(copy), dtype="float32") as llm:
            for text, given in (
                (before + "the cat", "the cat"),
                (before + "the cat", {"prompt": "the cat"}),
                ("the cat", {"prompt_token_ids": ids}),
            ):
                expected = encoder.embed(text, use_tqdm=False)[0]
                found = llm.embed([given], use_tqdm=False)[0]
                assert found.prompt_token_ids == expected.prompt_token_ids
                assert numbers(found).equal(numbers(expected))


def test_scores_of_an_embedding_model_are_cosines(encoder: LLM) -> None:
    one, other = (numbers(output) for output in encoder.embed(TEXTS[:2], use_tqdm=False))
    scores = encoder.score(TEXTS[0], TEXTS[:2], use_tqdm=False)
    assert scores[1].outputs.score == scores[1].outputs.data[0]
    assert close(torch.cat([numbers(score) for score in scores]), torch.stack([one @ one, one @ other]))


@pytest.mark.parametrize("num_labels", [0, 1])
def test_texts_of_two_lists_are_scored_pair_by_pair(tmp_path: Path, num_labels: int) -> None:
    first, second = TEXTS[:3], TEXTS[3:]
    with LLM(str(make_encoder(tmp_path / "bert", num_labels=num_labels)), dtype="float32") as llm:
        pairs = llm.score(first, second, use_tqdm=False)
        alone = [llm.score(one, other, use_tqdm=False)[0] for one, other in zip(first, second, strict=True)]
    assert len({float(numbers(pair)) for pair in pairs}) == len(pairs) == 3
    for pair, one in zip(pairs, alone, strict=True):
        assert close(numbers(pair), numbers(one)) and pair.prompt_token_ids == one.prompt_token_ids


@pytest.mark.parametrize("family", FAMILIES[1:])
@pytest.mark.parametrize("kernels", ["native", "reference"])
def test_families_of_encoders_are_those_of_transformers(tmp_path: Path, family: str, kernels: str) -> None:
    """Their positions, names and token types differ."""
    if kernels == "native":
        pytest.importorskip("octavo._native", reason="built without the native module")
    folder = make_encoder(tmp_path / family, family=family)
    longest = " ".join("a" * (MAX_TOKENS - 2))
    with LLM(str(folder), dtype="float32", kernels=kernels) as llm:
        assert llm.info.max_model_len == MAX_TOKENS
        assert kernels == "reference" or (llm.info.graph is not None and llm.info.graph.splits == [])
        for output in llm.embed([*TEXTS, longest], use_tqdm=False):
            expected = F.normalize(hidden_states(folder, output.prompt_token_ids).mean(0), dim=0)
            assert close(numbers(output), expected)
        assert len(output.prompt_token_ids) == MAX_TOKENS
        with pytest.raises(RequestError, match=f"maximum context length is {MAX_TOKENS}"):
            llm.embed(longest + " a", use_tqdm=False)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("num_labels", [1, 3])
def test_a_cross_encoder_reads_both_texts_at_once(tmp_path: Path, family: str, num_labels: int) -> None:
    folder = make_encoder(tmp_path / "cross", family=family, num_labels=num_labels)
    with LLM(str(folder), dtype="float32") as llm:
        library = LibraryTokenizer.from_file(str(folder / "tokenizer.json"))
        for output, second in zip(
            llm.score("the cat", ["a dog", "sits"], use_tqdm=False), ["a dog", "sits"], strict=True
        ):
            ids = library.encode("the cat", second).ids
            at = library.encode("the cat", second).type_ids.index(1)
            assert output.prompt_token_ids == ids
            logits = label_logits(folder, ids, at)
            expected = logits.sigmoid() if num_labels == 1 else logits.softmax(0)
            assert close(numbers(output), expected)
        output = llm.classify("the cat", use_tqdm=False)[0]
        logits = label_logits(folder, output.prompt_token_ids, 99)
        assert close(numbers(output), logits.sigmoid() if num_labels == 1 else logits.softmax(0))
        cut = llm.classify("the cat " * 20, truncate_prompt_tokens=5, use_tqdm=False)[0]
        assert len(cut.prompt_token_ids) == 5


def test_a_text_of_the_models_length_is_taken_and_a_longer_one_refused_or_cut(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "short", longest=20)
    with LLM(str(folder), dtype="float32") as llm:
        assert llm.info.max_model_len == 20 < MAX_TOKENS
        assert len(llm.embed("a " * 18, use_tqdm=False)[0].prompt_token_ids) == 20
        with pytest.raises(RequestError, match=r"prompts\[1\].*maximum context length is 20"):
            llm.embed(["a", "a " * 19], use_tqdm=False)
        cut = llm.embed("a " * 40, truncate_prompt_tokens=-1, use_tqdm=False)[0]
        whole = llm.embed("a " * 18, use_tqdm=False)[0]
        assert cut.prompt_token_ids == whole.prompt_token_ids and numbers(cut).equal(numbers(whole))


def test_an_encoder_generates_nothing_and_a_generator_embeds_nothing(encoder: LLM, succ: Path) -> None:
    with pytest.raises(RequestError, match="embed"):
        encoder.generate("a", use_tqdm=False)
    with LLM(str(succ), block_size=16) as llm, pytest.raises(RequestError, match="runner=pooling"):
        llm.embed("a", use_tqdm=False)


def test_a_prompt_to_generate_from_keeps_its_last_tokens(succ: Path) -> None:
    with LLM(str(succ), block_size=16, max_model_len=16) as llm:
        for asked, kept in ((3, 3), (40, 8), (-1, 8)):
            params = SamplingParams(max_tokens=8, temperature=0, truncate_prompt_tokens=asked)
            text = "ABCDEFGH" if asked == 40 else "ABCDEFGHIJKLMNOPQRSTUVWX"[:15]
            output = llm.generate(text, params, use_tqdm=False)[0]
            ids = llm.get_tokenizer().encode(text)
            assert list(output.prompt_token_ids) == ids[-kept:]
    for wrong in (0, -2):
        with pytest.raises(RequestError, match="truncate_prompt_tokens"):
            SamplingParams(truncate_prompt_tokens=wrong)


def test_what_the_model_cannot_give_is_refused(encoder: LLM) -> None:
    with pytest.raises(RequestError, match="no classifier"):
        encoder.classify("a", use_tqdm=False)
    with pytest.raises(RequestError, match="at most 48"):
        encoder.embed("a", dimensions=49, use_tqdm=False)
    with pytest.raises(RequestError, match="one first text"):
        encoder.score(["a", "b"], ["a", "b", "c"], use_tqdm=False)
    with pytest.raises(RequestError, match="task"):
        PoolingParams(task="dream")
    assert encoder.embed("a", use_tqdm=False)[0].error is None


def save_embedding_twin(folder: Path, tokenizer: Path) -> Path:
    """A random model as Qwen3-Embedding's files are: no head, no "model." before a name, and an end after each text."""
    save_tiny_model(folder, "qwen3")
    weights = load_file(folder / "model.safetensors")
    assert "lm_head.weight" in weights
    backbone = {name.removeprefix("model."): tensor for name, tensor in weights.items() if name != "lm_head.weight"}
    save_file(backbone, folder / "model.safetensors", metadata={"format": "pt"})
    write_pooling(folder, "last", normalize=True)
    written = json.loads((tokenizer / "tokenizer.json").read_text())
    end = {"SpecialToken": {"id": "<eos>", "type_id": 0}}
    written["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, end],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<eos>": {"id": "<eos>", "ids": [EOS], "tokens": ["<eos>"]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(written))
    return folder


def test_a_causal_embedding_model_is_that_of_transformers(succ: Path, tmp_path: Path) -> None:
    folder = save_embedding_twin(tmp_path / "twin", succ)
    oracle = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with LLM(str(folder), dtype="float32", block_size=16, num_gpu_blocks_override=200) as llm:
        assert llm.info.plan.runner == "pooling"
        outputs = llm.embed(TEXTS, use_tqdm=False)
        for text, output in zip(TEXTS, outputs, strict=True):
            assert output.prompt_token_ids == [*text.encode(), EOS]
            with torch.inference_mode():
                states = oracle(torch.tensor([output.prompt_token_ids])).last_hidden_state[0]
            assert close(numbers(output), F.normalize(states[-1], dim=0))
        alone = llm.embed(TEXTS[2], use_tqdm=False)[0]
        assert close(numbers(alone), numbers(outputs[2]))
    with pytest.raises(OctavoError, match=r"lm_head\.weight"):
        LLM(str(folder), dtype="float32", runner="generate")


def test_a_causal_model_can_be_made_to_embed_by_its_last_token_in_chunks(succ: Path) -> None:
    with LLM(str(succ), runner="pooling", block_size=16, num_gpu_blocks_override=200) as llm:
        whole = llm.embed("A" * 40, use_tqdm=False)[0]
        again = llm.embed("A" * 40, use_tqdm=False)[0]
        assert again.num_cached_tokens == 32 and numbers(again).equal(numbers(whole))
    with LLM(
        str(succ),
        runner="pooling",
        block_size=16,
        num_gpu_blocks_override=200,
        max_num_batched_tokens=8,
        max_num_seqs=4,
    ) as llm:
        chunked = llm.embed("A" * 40, use_tqdm=False)[0]
    assert numbers(chunked).equal(numbers(whole))


@pytest.mark.slow
def test_a_background_process_and_asyncio_give_the_same(encoder: LLM, folder: Path) -> None:
    expected = [output.outputs.data for output in encoder.embed(TEXTS, use_tqdm=False)]

    async def embed() -> list[list[float]]:
        llm = AsyncLLM.from_engine_args(EngineArgs(str(folder), dtype="float32"))
        try:
            outputs = [llm.encode(text, PoolingParams(), str(place)) for place, text in enumerate(TEXTS)]
            return [output.outputs.data for output in await asyncio.gather(*outputs)]
        finally:
            llm.shutdown()

    for one, other in zip(asyncio.run(embed()), expected, strict=True):
        assert close(torch.tensor(one), torch.tensor(other))


@pytest.mark.models
def test_minilm_is_that_of_transformers() -> None:
    from octavo.checkpoint.catalogue import models_dir

    folder = models_dir() / "all-minilm-l6-v2"
    if not folder.is_dir():
        pytest.skip("all-minilm-l6-v2 is not in the model cache: python scripts/test_models.py all-minilm-l6-v2")
    texts = ["The cat sits outside", "A man is playing guitar", "Zürich 東京 🦙", "word " * 200]
    with LLM(str(folder), dtype="float32") as llm:
        for output in llm.embed(texts, use_tqdm=False):
            expected = hidden_states(folder, output.prompt_token_ids).mean(0)
            assert F.cosine_similarity(numbers(output), expected, dim=0) > 0.9999


def test_sampling_params_do_not_reach_a_pooling_engine(encoder: LLM) -> None:
    with pytest.raises(RequestError, match="pools texts"):
        encoder.generate(["a"], SamplingParams(max_tokens=1), use_tqdm=False)
