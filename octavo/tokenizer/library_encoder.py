"""Encoding by the ``tokenizers`` library."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryTokenizer


def component_state(component: Any) -> dict[str, Any]:
    """A library component (decoder, pre-tokenizer ...) as tokenizer.json writes it; empty for none."""
    if component is None:
        return {}
    state: dict[str, Any] = json.loads(component.__getstate__())
    return state


class LibraryEncoder:
    """A library tokenizer behind our protocol.

    The library object is never changed after it was built: that is what makes it safe to use from many threads.
    """

    def __init__(self, library: LibraryTokenizer) -> None:
        self._library = library
        self._special_ids = {i for i, token in library.get_added_tokens_decoder().items() if token.special}

    def encode(self, text: str, *, special: bool = True, at_start: bool = True) -> list[int]:
        """See Encoder."""
        first = at_start or not self._prefixes_first_text
        if special:
            return _ids(self._library if first else self._later, text)
        plain = self._plain if first else self._plain_later
        ids = _ids(plain, text)
        if self._special_ids.isdisjoint(ids):
            return ids
        # A vocabulary that spells a special token with plain pieces too; one character alone cannot be it.
        return [token_id for character in text for token_id in _ids(plain, character)]

    @cached_property
    def _prefixes_first_text(self) -> bool:
        return '"first"' in json.dumps(component_state(self._library.pre_tokenizer))

    @cached_property
    def _later(self) -> LibraryTokenizer:
        return self._variant(special=True, at_start=False)

    @cached_property
    def _plain(self) -> LibraryTokenizer:
        return self._variant(special=False, at_start=True)

    @cached_property
    def _plain_later(self) -> LibraryTokenizer:
        return self._variant(special=False, at_start=False)

    def _variant(self, *, special: bool, at_start: bool) -> LibraryTokenizer:
        """Another tokenizer around the same model, which is shared and not copied."""
        from tokenizers import Tokenizer

        variant = Tokenizer(self._library.model)
        if self._library.normalizer is not None:
            variant.normalizer = self._library.normalizer
        if self._library.pre_tokenizer is not None:
            variant.pre_tokenizer = self._library.pre_tokenizer if at_start else self._without_prefix()
        variant.add_tokens([token for _, token in sorted(self._library.get_added_tokens_decoder().items())])
        variant.encode_special_tokens = not special
        return variant

    def _without_prefix(self) -> Any:
        """The pre-tokenizer with its prefix space for first texts switched off."""
        from tokenizers import Tokenizer

        state = json.dumps(component_state(self._library.pre_tokenizer)).replace('"first"', '"never"')
        carrier = f'{{"model": {{"type": "BPE", "vocab": {{}}, "merges": []}}, "pre_tokenizer": {state}}}'
        return Tokenizer.from_str(carrier).pre_tokenizer


def _ids(library: LibraryTokenizer, text: str) -> list[int]:
    ids: list[int] = library.encode(text, add_special_tokens=False).ids
    return ids
