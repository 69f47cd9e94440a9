"""A tokenizer from the tokenizer.json of a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.tokenizer.library_encoder import LibraryEncoder, component_state
from octavo.tokenizer.tokenizer import Frame, Tokenizer
from octavo.tokenizer.vocabulary import Spelling, Vocabulary, byte_level, sentencepiece, word_piece
from octavo.words.errors import CheckpointError, UnsupportedError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryTokenizer

_PROBE = "a"


def tokenizer_from_folder(
    folder: Path, *, chat_template: str | None = None, special_tokens: Mapping[str, str] | None = None
) -> Tokenizer:
    """Build the tokenizer of ``folder``.

    ``special_tokens`` are texts by the names chat templates use (bos_token ...). Raises CheckpointError for a missing
    or broken file, UnsupportedError for a decoder whose tokens do not map to bytes.
    """
    library = _read_library(folder / "tokenizer.json")
    special_tokens = dict(special_tokens or {})
    bos, eos = (_id_of(library, special_tokens.get(name)) for name in ("bos_token", "eos_token"))
    added = library.get_added_tokens_decoder()
    vocabulary = Vocabulary(
        library.id_to_token,
        _size(library),
        _spelling(library, folder / "tokenizer.json"),
        added={token_id: token.content for token_id, token in added.items()},
        special_ids=[token_id for token_id, token in added.items() if token.special],
    )
    return Tokenizer(
        LibraryEncoder(library),
        vocabulary,
        bos_token_id=bos,
        eos_token_id=eos,
        frame=_frame(library),
        chat_template=chat_template,
        special_tokens=special_tokens,
    )


def _read_library(path: Path) -> LibraryTokenizer:
    from tokenizers import Tokenizer as LibraryTokenizer

    if not path.is_file():
        raise CheckpointError(path, "is missing; a Hugging Face folder needs a tokenizer.json")
    try:
        library = LibraryTokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise CheckpointError(path, f"is no tokenizer: {error}") from error
    library.no_truncation()
    library.no_padding()
    return library


def _id_of(library: LibraryTokenizer, text: str | None) -> int | None:
    token_id: int | None = None if text is None else library.token_to_id(text)
    return token_id


def _frame(library: LibraryTokenizer) -> Frame:
    """The ids that the file's post-processor puts around a text, and between two.

    As in Transformers 5, add_bos_token and add_eos_token of tokenizer_config.json count for nothing beside it.
    """
    plain = library.encode(_PROBE, add_special_tokens=False).ids
    whole = library.encode(_PROBE, add_special_tokens=True).ids
    pair = library.encode(_PROBE, _PROBE, add_special_tokens=True).ids
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            prefix, suffix = whole[:start], whole[start + len(plain) :]
            return Frame(prefix, suffix, pair[start + len(plain) : len(pair) - len(plain) - len(suffix)])
    return Frame()


def _size(library: LibraryTokenizer) -> int:
    """One past the highest id; the count of tokens is that unless ids have holes."""
    count: int = library.get_vocab_size()
    return max(library.get_vocab().values(), default=-1) + 1 if library.id_to_token(count - 1) is None else count


def _spelling(library: LibraryTokenizer, path: Path) -> Spelling:
    """How tokens spell text, read from the decoder."""
    state = component_state(library.decoder)
    steps = {step.get("type") for step in state.get("decoders", [state])}
    if "ByteLevel" in steps:
        return byte_level
    if steps == {"WordPiece"}:
        return word_piece
    if steps <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"} and steps & {"Replace", "Metaspace"}:
        return sentencepiece
    names = ", ".join(sorted(str(step) for step in steps))
    known = "ByteLevel, WordPiece, Metaspace, Replace with ByteFallback"
    raise UnsupportedError(f"{path}: decoder {names} is not supported; supported: {known}.")
