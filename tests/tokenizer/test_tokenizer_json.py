from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.checkpoint.resolve import resolve_model
from octavo.frontend.load_tokenizer import load_tokenizer
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.words.errors import CheckpointError, ConfigError, RequestError, UnsupportedError
from tests.succ import BOS, EOS, make_succ
from tests.tokenizer.texts import TEXTS


@pytest.fixture(scope="module")
def tokenizer(succ: Path) -> Tokenizer:
    return load_tokenizer(resolve_model(str(succ)))


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("text", TEXTS)
def test_succ_has_one_token_per_byte(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(text.encode()) == text


def test_ids_and_texts_of_succ(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("w<eos>") == [119, EOS]
    assert tokenizer.encode("w<eos>", allow_special=False) == list(b"w<eos>")
    assert tokenizer.decode([119, EOS, BOS]) == "w"
    assert tokenizer.decode([119, EOS, BOS], skip_special_tokens=False) == "w<eos><bos>"
    assert tokenizer.decode([0xF0, 0x9F]) == "\ufffd"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (BOS, EOS)
    assert tokenizer.special_ids == {256, 257, 258}
    assert tokenizer.num_text_tokens == 259
    assert tokenizer.token_bytes(0xF0) == b"\xf0"
    assert tokenizer.convert_id_to_token(32) == "Ġ"
    assert tokenizer.convert_id_to_token(300) == "" == tokenizer.decode([300])


@given(st.lists(st.integers(0, 319), max_size=30))
def test_decoding_never_fails(tokenizer: Tokenizer, token_ids: list[int]) -> None:
    known = bytes(token_id for token_id in token_ids if token_id < 256)
    assert tokenizer.decode(token_ids) == known.decode("utf-8", errors="replace")


def test_a_lone_surrogate_is_a_request_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="character 2"):
        tokenizer.encode("ab\ud800")
    with pytest.raises(RequestError, match="string"):
        tokenizer.encode(5)  # type: ignore[arg-type]


def processor(*single: str) -> dict[str, Any]:
    """A post-processor that puts special tokens around the text "A"."""
    parts = [{"Sequence" if each == "A" else "SpecialToken": {"id": each, "type_id": 0}} for each in single]
    ids = {"<bos>": BOS, "<eos>": EOS}
    specials = {text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in single if text != "A"}
    return {"type": "TemplateProcessing", "single": parts, "pair": [*parts, *parts], "special_tokens": specials}


@pytest.mark.parametrize("config", [{}, {"add_bos_token": True, "add_eos_token": True}, {"add_bos_token": False}])
@pytest.mark.parametrize(
    ("single", "expected"),
    [
        (("A",), [65]),
        (("<bos>", "A"), [BOS, 65]),
        (("<bos>", "A", "<eos>"), [BOS, 65, EOS]),
        (("A", "<eos>"), [65, EOS]),
    ],
)
def test_the_post_processor_decides_what_is_put_around_a_text_as_in_transformers(
    tmp_path: Path, single: tuple[str, ...], expected: list[int], config: dict[str, bool]
) -> None:
    from transformers import AutoTokenizer

    folder = make_succ(tmp_path / "succ")
    change_json(folder / "tokenizer.json", post_processor=processor(*single))
    change_json(folder / "tokenizer_config.json", **config)
    tokenizer = load_tokenizer(resolve_model(str(folder)))
    assert tokenizer.encode("A") == expected == AutoTokenizer.from_pretrained(folder).encode("A")
    assert tokenizer.encode("A", add_special_tokens=False) == [65]


def test_broken_files_are_named(tmp_path: Path) -> None:
    folder = make_succ(tmp_path / "succ")
    change_json(
        folder / "tokenizer.json",
        decoder={"type": "CTC", "pad_token": "p", "word_delimiter_token": "|", "cleanup": True},
    )
    with pytest.raises(UnsupportedError, match=r"tokenizer\.json.*CTC"):
        load_tokenizer(resolve_model(str(folder)))
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        load_tokenizer(resolve_model(str(folder)))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="missing"):
        load_tokenizer(resolve_model(str(folder)))


def test_a_chat_template_can_be_given_as_text_or_as_a_file(succ: Path, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("file")
    checkpoint = resolve_model(str(succ))
    assert load_tokenizer(checkpoint, chat_template="{{ 1 }}").chat_template == "{{ 1 }}"
    assert load_tokenizer(checkpoint, chat_template=str(tmp_path / "t.jinja")).chat_template == "file"
    with pytest.raises(ConfigError, match="neither"):
        load_tokenizer(checkpoint, chat_template="nowhere.jinja")


def test_many_threads_may_encode_at_once(tokenizer: Tokenizer) -> None:
    expected = {text: tokenizer.encode(text) for text in TEXTS}
    wrong: list[str] = []

    def work(offset: int) -> None:
        for turn in range(20):
            text = TEXTS[(offset + turn) % len(TEXTS)]
            plain = tokenizer.encode(text, allow_special=turn % 2 == 0)
            chat = tokenizer.apply_chat_template([{"role": "user", "content": f"{text}<eos>"}])
            if plain != expected[text] or chat != [*text.encode(), *b"<eos>"]:
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
