"""The pre-tokenizers that GGUF files call by name, each as the model's own tokenizer.json has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryTokenizer

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, kw_only=True)
class PreTokenizer:
    """How text is cut before merging.

    ``pattern`` None is GPT-2's. ``single_digits`` cuts digits apart first, ``nfc`` composes characters before all.
    ``ignore_merges`` takes a word that is a token as it is. ``adds_bos`` is the default where the file says nothing.
    """

    pattern: str | None = None
    single_digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False

    def install(self, library: LibraryTokenizer) -> None:
        """Give ``library`` this normalizer and pre-tokenizer."""
        from tokenizers import Regex, normalizers, pre_tokenizers

        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.single_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.pattern is not None:
            steps.append(pre_tokenizers.Split(Regex(self.pattern), behavior="isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.pattern is None))
        library.pre_tokenizer = pre_tokenizers.Sequence(steps)
        if self.nfc:
            library.normalizer = normalizers.NFC()


_GPT2_KIND = PreTokenizer()
_STARCODER_KIND = PreTokenizer(single_digits=True)
_LLAMA3_KIND = PreTokenizer(pattern=_LLAMA3, ignore_merges=True, adds_bos=True)
_QWEN2_KIND = PreTokenizer(pattern=_QWEN2, nfc=True)

PRE_TOKENIZERS = {
    "default": _GPT2_KIND,
    "gpt-2": _GPT2_KIND,
    "llama-bpe": _LLAMA3_KIND,
    "llama-v3": _LLAMA3_KIND,
    "llama3": _LLAMA3_KIND,
    "qwen2": _QWEN2_KIND,
    "smollm": _STARCODER_KIND,
    "starcoder": _STARCODER_KIND,
    "tekken": PreTokenizer(pattern=_TEKKEN, ignore_merges=True, adds_bos=True),
}
"""Value of ``tokenizer.ggml.pre`` -> pre-tokenizer. A name that is missing here is refused, never guessed."""
