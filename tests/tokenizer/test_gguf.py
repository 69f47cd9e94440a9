from __future__ import annotations

from typing import Any

import pytest

from octavo.checkpoint.gguf_header import GGUFFile
from octavo.checkpoint.resolve import resolve_model
from octavo.frontend.load_tokenizer import load_tokenizer
from octavo.tokenizer.gguf import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, tokenizer_from_gguf
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.tokenizer.vocabulary import BYTE_ALPHABET
from octavo.words.errors import CheckpointError, UnsupportedError
from tests.tokenizer.texts import TEXTS

Rows = list[tuple[str, int, float]]


def metadata(kind: str, rows: Rows, **more: Any) -> dict[str, Any]:
    texts, types, scores = zip(*rows, strict=True)
    named = {f"tokenizer.ggml.{name}": value for name, value in more.items()}
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.tokens": list(texts),
        "tokenizer.ggml.token_type": list(types),
        "tokenizer.ggml.scores": list(scores),
        **named,
    }


WORD_LIST = "▁the ▁then ▁other ▁▁▁▁ hello world ing ▁ing ▁hello aaaa ther e▁the ▁1 23 été 你好"


def sentencepiece_rows() -> Rows:
    """<unk> <s> </s>, 256 bytes, the characters of a few words, and merges of them with falling scores."""
    words = WORD_LIST.split()
    characters = sorted({character for word in words for character in word} | set("abcdefgh ABC".replace(" ", "")))
    pieces = sorted({word[start:end] for word in words for start in range(len(word)) for end in range(start + 2, 9)})
    pieces = [piece for piece in dict.fromkeys(pieces) if len(piece) > 1]
    rows: Rows = [("<unk>", UNKNOWN, 0.0), ("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0)]
    rows += [(f"<0x{byte:02X}>", BYTE, 0.0) for byte in range(256)]
    rows += [(piece, NORMAL, -float(place)) for place, piece in enumerate(sorted(pieces, key=lambda p: (len(p), p)))]
    rows += [(character, NORMAL, -1000.0 - place) for place, character in enumerate(characters)]
    return [*rows, ("<tag>", USER_DEFINED, 0.0)]


def sentencepiece(**more: Any) -> dict[str, Any]:
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return metadata("llama", sentencepiece_rows(), **{**ids, **more})


def byte_level(**more: Any) -> dict[str, Any]:
    alphabet: Rows = [(character, NORMAL, 0.0) for character in BYTE_ALPHABET]
    merged: Rows = [("Ġt", NORMAL, 0.0), ("he", NORMAL, 0.0), ("Ġthe", NORMAL, 0.0), ("12", NORMAL, 0.0)]
    specials: Rows = [("<end>", CONTROL, 0.0), ("<tool>", USER_DEFINED, 0.0), ("[PAD]", UNUSED, 0.0)]
    merges = ["Ġ t", "h e", "Ġt he", "1 2"]
    return metadata("gpt2", [*alphabet, *merged, *specials], **{"merges": merges, "eos_token_id": 260, **more})


def oracle_of(given: dict[str, Any]) -> Any:
    """Transformers' tokenizer of the same metadata, as the library object."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_TOKENIZER_MAPPING, convert_gguf_tokenizer

    names = {f"tokenizer.{key}": name for key, name in GGUF_TOKENIZER_MAPPING["tokenizer"].items()}
    described = {name: given[key] for key, name in names.items() if key in given}
    return convert_gguf_tokenizer(given["general.architecture"], described)[0]


WORDS = [
    "the other then hello world",
    "hello",
    " hello",
    "  hello   world ",
    "aaaaaaaaaaaaaaaaa",
    "othe then",
    "e the the thethe",
    "été 你好 🦙 ünknown",
    "x<tag> the</s>the<s>",
    "▁the ▁▁ x",
    "1 23 123 1 23",
]


@pytest.mark.parametrize("text", [*WORDS, *TEXTS])
def test_a_sentencepiece_vocabulary_encodes_and_decodes_as_transformers_does(text: str) -> None:
    tokenizer, oracle = tokenizer_from_gguf(sentencepiece()), oracle_of(sentencepiece())
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == oracle.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text) == [1, *ids]
    assert tokenizer.decode(ids, skip_special_tokens=False).removeprefix(" ") == oracle.decode(
        ids, skip_special_tokens=False
    )


def test_the_prefix_space_stands_only_at_the_start_and_only_where_asked() -> None:
    tokenizer = tokenizer_from_gguf(sentencepiece())
    hello, space_hello = (tokenizer.encode(text, False, at_start=False) for text in ("hello", " hello"))
    assert tokenizer.encode("hello", False) == space_hello != hello
    assert tokenizer_from_gguf(sentencepiece(add_space_prefix=False)).encode("hello", False) == hello


@pytest.mark.parametrize("text", ["<s>", "x</s>y", "<0x41>", "<tag>"])
def test_plain_encoding_never_gives_a_special_token(text: str) -> None:
    for given in (sentencepiece(), byte_level()):
        tokenizer = tokenizer_from_gguf(given)
        ids = tokenizer.encode(text + "<end>", add_special_tokens=False, allow_special=False)
        assert tokenizer.special_ids.isdisjoint(ids)
        assert tokenizer.decode(ids).strip() == text + "<end>"


def test_a_vocabulary_without_byte_tokens_has_one_unknown_token_for_a_run_of_unknown_characters() -> None:
    rows: Rows = [row for row in sentencepiece_rows() if row[1] != BYTE]
    given = metadata("llama", rows, bos_token_id=1, eos_token_id=2, unknown_token_id=0)
    ids = tokenizer_from_gguf(given).encode("hello 🦙🦙 hello", add_special_tokens=False)
    assert ids.count(0) == 1


def test_runs_of_spaces_in_gemma_files_are_pieces() -> None:
    rows = [("  " if text == "▁▁" else text, kind, score) for text, kind, score in sentencepiece_rows()]
    given = {**metadata("llama", rows, bos_token_id=1, add_space_prefix=False), "general.architecture": "gemma3"}
    tokenizer, oracle = tokenizer_from_gguf(given), oracle_of(given)
    for text in WORDS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == oracle.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text.replace("▁", " ")


def test_byte_level_files_know_their_specials_and_leave_out_padding_rows() -> None:
    tokenizer = tokenizer_from_gguf(byte_level(pre="gpt-2"))
    assert tokenizer.num_text_tokens == 262
    assert tokenizer.special_ids == {260}
    assert tokenizer.encode(" the<end><tool>") == [258, 260, 261]
    assert tokenizer.decode([258, 260, 261]) == " the<tool>"
    assert tokenizer.eos_token_id == 260 and tokenizer.bos_token_id is None


@pytest.mark.parametrize(
    ("pre", "expected"), [("gpt-2", ["12"]), ("smollm", ["1", "2"]), ("qwen2", ["1", "2"]), ("llama-bpe", ["12"])]
)
def test_the_pre_tokenizer_decides_where_merges_stop(pre: str, expected: list[str]) -> None:
    tokenizer = tokenizer_from_gguf(byte_level(pre=pre))
    assert [tokenizer.convert_id_to_token(i) for i in tokenizer.encode("12")] == expected


def test_beginning_and_end_tokens_are_added_as_the_file_says() -> None:
    assert tokenizer_from_gguf(byte_level(bos_token_id=260)).encode("A") == [BYTE_ALPHABET["A"] and 32]
    assert tokenizer_from_gguf(byte_level(bos_token_id=260, pre="llama-bpe")).encode("A") == [260, 32]
    assert tokenizer_from_gguf(byte_level(bos_token_id=260, add_bos_token=True)).encode("A") == [260, 32]
    assert tokenizer_from_gguf(byte_level(add_eos_token=True)).encode("A") == [32, 260]
    assert tokenizer_from_gguf(sentencepiece(add_bos_token=False)).encode("")[:1] != [1]


def test_what_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="'rwkv'.*known: gpt2, llama"):
        tokenizer_from_gguf(metadata("rwkv", sentencepiece_rows()))
    with pytest.raises(UnsupportedError, match="'new-bpe'.*qwen2"):
        tokenizer_from_gguf(byte_level(pre="new-bpe"))


def test_metadata_that_do_not_fit_together_are_refused() -> None:
    for broken in (
        {**sentencepiece(), "tokenizer.ggml.token_type": [1]},
        {**sentencepiece(), "tokenizer.ggml.tokens": [], "tokenizer.ggml.token_type": []},
        sentencepiece(scores=[0.0]),
        sentencepiece(eos_token_id=10**6),
        byte_level(merges=["no such"]),
        metadata("llama", [row for row in sentencepiece_rows() if row[0] != "<0x41>"]),
    ):
        with pytest.raises(CheckpointError):
            tokenizer_from_gguf(broken)


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("model", ["gpt2"], "must be text"),
        ("pre", [1], "must be text"),
        ("tokens", 7, "must be a list of str"),
        ("tokens", "abc", "must be a list of str"),
        ("tokens", [1, 2], "must be a list of str"),
        ("token_type", 1, "must be a list of int"),
        ("token_type", ["1"], "must be a list of int"),
        ("merges", 0.5, "must be a list of str"),
        ("merges", [1], "must be a list of str"),
        ("eos_token_id", 1.0, "there are 262 tokens"),
        ("unknown_token_id", "x", "there are 262 tokens"),
        ("padding_token_id", True, "there are 262 tokens"),
    ],
)
def test_metadata_of_another_type_are_one_line_naming_file_and_key(key: str, value: Any, rule: str) -> None:
    with pytest.raises(CheckpointError, match=f"^GGUF file: tokenizer.ggml.{key} is .*{rule}$"):
        tokenizer_from_gguf({**byte_level(), f"tokenizer.ggml.{key}": value})


def test_a_chat_template_or_a_score_of_another_type_is_refused_too() -> None:
    with pytest.raises(CheckpointError, match="tokenizer.chat_template is 7; it must be text"):
        tokenizer_from_gguf({**byte_level(), "tokenizer.chat_template": 7})
    with pytest.raises(CheckpointError, match="tokenizer.ggml.scores is 'x'; it must be a list of float"):
        tokenizer_from_gguf(sentencepiece(scores="x"))


def true_oracle(name: str) -> Any:
    """Transformers' tokenizer of a real file, with what its GGUF conversion leaves out put right.

    SmolLM2's own tokenizer.json cuts digits apart before GPT-2's pattern; Qwen2's composes characters (NFC) first.
    """
    from tokenizers import normalizers, pre_tokenizers

    given = GGUFFile.open(resolve_model(name).path).metadata
    oracle = oracle_of(
        {
            key: list(value) if hasattr(value, "__len__") and not isinstance(value, str) else value
            for key, value in given.items()
        }
    )
    if given.get("tokenizer.ggml.pre") == "smollm":
        steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        oracle.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if given.get("tokenizer.ggml.pre") == "qwen2":
        oracle.normalizer = normalizers.NFC()
    return oracle


def compare(name: str) -> None:
    tokenizer, oracle = load_tokenizer(resolve_model(name)), true_oracle(name)
    for text in [*TEXTS, *WORDS]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == oracle.encode(text, add_special_tokens=False).ids, text
        assert tokenizer.decode(ids, skip_special_tokens=False) == oracle.decode(ids, skip_special_tokens=False), text


def test_smollm2_encodes_and_decodes_as_its_own_tokenizer_does(smollm2: str) -> None:
    compare(smollm2)


@pytest.mark.models
def test_real_models_encode_and_decode_as_their_own_tokenizers_do(real_model: str) -> None:
    compare(real_model)


def test_token_ids_of_smollm2_are_the_known_ones(smollm2: str) -> None:
    tokenizer: Tokenizer = load_tokenizer(resolve_model(smollm2))
    known = {
        "🦙": [10813, 116, 243],
        "你好": [18645, 250, 48392, 138],
        "ABC": [35542],
        " STOP": [5022, 7627],
        "a": [81],
    }
    assert {text: tokenizer.encode(text) for text in known} == known
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.num_text_tokens) == (1, 2, 49152)
    assert not any(b"\xf0\x9f\xa6\x99" in tokenizer.token_bytes(token_id) for token_id in (10813, 116, 243))
