"""A vocabulary that a test can read: a token is a byte."""

from __future__ import annotations

import numpy as np

from octavo.control.structured_output.backends.llguidance import LLGuidanceBackend, LLGuidanceGrammar

EOS = 256


class Bytes:
    """A vocabulary of single bytes, an end, and two ids of text more: 'ab' and '"a'."""

    num_text_tokens = 259
    special_ids = frozenset({EOS})
    _tokens = [*(bytes([value]) for value in range(256)), b"<eos>", b"ab", b'"a']

    def token_bytes(self, token_id: int) -> bytes:
        return self._tokens[token_id]

    def encode(self, text: str, add_special_tokens: bool = True, allow_special: bool = True) -> list[int]:
        return list(text.encode())


def allowed(grammar: LLGuidanceGrammar, backend: LLGuidanceBackend) -> set[int]:
    rows = np.zeros((1, backend.num_mask_words), dtype=np.int32)
    grammar.fill(rows, [])
    return set(np.flatnonzero(np.unpackbits(rows.view(np.uint8), bitorder="little")).tolist())
