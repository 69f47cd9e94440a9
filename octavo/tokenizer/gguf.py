"""A tokenizer from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from octavo.tokenizer.encoder import Encoder
from octavo.tokenizer.library_encoder import LibraryEncoder
from octavo.tokenizer.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from octavo.tokenizer.sentencepiece_bpe import SentencePieceBPE, SentencePieceVocabulary
from octavo.tokenizer.tokenizer import Frame, Tokenizer
from octavo.tokenizer.vocabulary import SPACE_SIGN, Vocabulary, byte_level, sentencepiece
from octavo.words.errors import CheckpointError, UnsupportedError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_GEMMA = ("gemma", "gemma2", "gemma3", "gemma3n")
# The name of a token's id in the file, by the name that chat templates use for its text.
_TEMPLATE_NAMES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


@dataclass(frozen=True, kw_only=True)
class _Tokens:
    """The vocabulary of a file, without the unused rows at its end that only pad the matrix."""

    texts: list[str]
    by_type: dict[int, dict[str, int]]

    def of_type(self, kind: int) -> dict[str, int]:
        return self.by_type.get(kind, {})


def tokenizer_from_gguf(
    metadata: Mapping[str, Any], *, file: object = "GGUF file", chat_template: str | None = None
) -> Tokenizer:
    """Build the tokenizer that ``metadata`` describes; ``chat_template`` replaces the one in there.

    Raises UnsupportedError for a kind of vocabulary or pre-tokenizer that is not known, CheckpointError for metadata
    that do not fit together.
    """
    kind = _text(metadata, "tokenizer.ggml.model", file)
    if kind not in _BUILDERS:
        known = ", ".join(_BUILDERS)
        raise UnsupportedError(f"{file}: tokenizer kind {kind!r} (tokenizer.ggml.model) is not known; known: {known}.")
    tokens = _tokens(metadata, file)
    encoder, spelling, adds_bos = _BUILDERS[kind](metadata, tokens, file)
    added = {**tokens.of_type(CONTROL), **_matched_whole(tokens)}
    vocabulary = Vocabulary(
        partial(_text_of, tokens.texts),
        len(tokens.texts),
        spelling,
        added={place: text for text, place in added.items()},
        special_ids=tokens.of_type(CONTROL).values(),
    )
    ids = {name: _token_id(metadata, key, tokens, file) for name, key in _TEMPLATE_NAMES.items()}
    bos, eos = ids["bos_token"], ids["eos_token"]
    return Tokenizer(
        encoder,
        vocabulary,
        bos_token_id=bos,
        eos_token_id=eos,
        frame=Frame(
            (bos,) if bos is not None and metadata.get("tokenizer.ggml.add_bos_token", adds_bos) else (),
            (eos,) if eos is not None and metadata.get("tokenizer.ggml.add_eos_token", False) else (),
        ),
        chat_template=_text(metadata, "tokenizer.chat_template", file) if chat_template is None else chat_template,
        special_tokens={name: tokens.texts[place] for name, place in ids.items() if place is not None},
    )


def _text_of(texts: list[str], token_id: int) -> str | None:
    return texts[token_id]


def _text(metadata: Mapping[str, Any], key: str, file: object) -> str | None:
    value = metadata.get(key)
    if value is not None and not isinstance(value, str):
        raise CheckpointError(file, f"{key} is {value!r:.40}; it must be text")
    return value


def _list_of(kind: type, metadata: Mapping[str, Any], key: str, file: object) -> list[Any]:
    """The values of a list, none where it is missing; a GGUF list has one kind of values, so the first tells."""
    values = metadata.get(key, [])
    if isinstance(values, str) or not isinstance(values, Sequence) or not isinstance(next(iter(values), kind()), kind):
        raise CheckpointError(file, f"{key} is {values!r:.40}; it must be a list of {kind.__name__}")
    return list(values)


def _tokens(metadata: Mapping[str, Any], file: object) -> _Tokens:
    texts = _list_of(str, metadata, "tokenizer.ggml.tokens", file)
    if metadata.get("general.architecture") in _GEMMA:
        # These files store runs of spaces as themselves. They are reached by merging, like any other piece.
        texts = [text if text.strip(" ") else SPACE_SIGN * len(text) for text in texts]
    types = _list_of(int, metadata, "tokenizer.ggml.token_type", file) or [NORMAL] * len(texts)
    if not texts or len(types) != len(texts):
        raise CheckpointError(file, f"{len(texts)} tokens with {len(types)} token types; there must be one for each")
    size = len(texts)
    while size and types[size - 1] == UNUSED:
        size -= 1
    by_type: dict[int, dict[str, int]] = {}
    for place, kind in enumerate(types[:size]):
        by_type.setdefault(kind, {})[texts[place]] = place
    return _Tokens(texts=texts[:size], by_type=by_type)


def _matched_whole(tokens: _Tokens) -> dict[str, int]:
    """User-defined tokens as text has them; those of spaces only are spelt otherwise there."""
    return {text: place for text, place in tokens.of_type(USER_DEFINED).items() if text.strip(SPACE_SIGN)}


def _token_id(metadata: Mapping[str, Any], name: str, tokens: _Tokens, file: object) -> int | None:
    token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if token_id is not None and not (type(token_id) is int and 0 <= token_id < len(tokens.texts)):
        raise CheckpointError(
            file, f"tokenizer.ggml.{name}_token_id is {token_id!r:.40}; there are {len(tokens.texts)} tokens"
        )
    return token_id


_Built = tuple[Encoder, Callable[[str], bytes], bool]


def _build_byte_level(metadata: Mapping[str, Any], tokens: _Tokens, file: object) -> _Built:
    """Byte-level BPE: vocabulary and merges stand in the file, the pre-tokenizer only by its name."""
    from tokenizers import AddedToken, Tokenizer, models

    name = _text(metadata, "tokenizer.ggml.pre", file) or "default"
    if name not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UnsupportedError(f"{file}: pre-tokenizer {name!r} (tokenizer.ggml.pre) is not known; known: {known}.")
    pre: PreTokenizer = PRE_TOKENIZERS[name]
    vocab = {text: place for place, text in enumerate(tokens.texts)}
    merges = [tuple(merge.split(" ", 1)) for merge in _list_of(str, metadata, "tokenizer.ggml.merges", file)]
    try:
        library = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre.ignore_merges))
    except Exception as error:  # the library raises bare Exceptions
        raise CheckpointError(file, f"tokenizer.ggml.merges do not fit the tokens: {error}") from error
    pre.install(library)
    library.add_special_tokens([AddedToken(text, normalized=False) for text in tokens.of_type(CONTROL)])
    library.add_tokens([AddedToken(text, normalized=False) for text in tokens.of_type(USER_DEFINED)])
    return LibraryEncoder(library), byte_level, pre.adds_bos


def _build_sentencepiece(metadata: Mapping[str, Any], tokens: _Tokens, file: object) -> _Built:
    if "tokenizer.ggml.merges" in metadata:
        raise UnsupportedError(f"{file}: a SentencePiece vocabulary with its own merges is not supported.")
    gemma = metadata.get("general.architecture") in _GEMMA
    scores = _list_of(float, metadata, "tokenizer.ggml.scores", file)[: len(tokens.texts)]
    if len(scores) != len(tokens.texts):
        raise CheckpointError(file, f"{len(scores)} tokenizer.ggml.scores for {len(tokens.texts)} tokens")
    encoder = SentencePieceBPE(
        SentencePieceVocabulary(
            pieces={**tokens.of_type(NORMAL), **tokens.of_type(USER_DEFINED)},
            # Gemma's vocabulary is written in the order of its merges, which its scores do not follow.
            priority=range(len(scores)) if gemma else [-score for score in scores],
            byte_ids=_byte_ids(tokens.of_type(BYTE), file),
            unknown_id=next(iter(tokens.of_type(UNKNOWN).values()), metadata.get("tokenizer.ggml.unknown_token_id")),
            special=tokens.of_type(CONTROL),
            added=_matched_whole(tokens),
            prefix_space=bool(metadata.get("tokenizer.ggml.add_space_prefix", True)),
        )
    )
    return encoder, sentencepiece, True


def _byte_ids(byte_tokens: Mapping[str, int], file: object) -> list[int]:
    if not byte_tokens:
        return []
    try:
        return [byte_tokens[f"<0x{byte:02X}>"] for byte in range(256)]
    except KeyError as error:
        raise CheckpointError(file, f"byte token {error} is missing from the vocabulary") from error


_BUILDERS: dict[Any, Callable[[Mapping[str, Any], _Tokens, object], _Built]] = {
    "gpt2": _build_byte_level,
    "llama": _build_sentencepiece,
}
