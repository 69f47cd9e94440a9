"""Scores from vectors, and which texts are to be scored together."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.words.errors import RequestError
from octavo.words.outputs import PoolingOutput, PoolingRequestOutput
from octavo.words.pooling_params import PoolingParams


def text_pairs(first: str | Sequence[str], second: str | Sequence[str]) -> list[tuple[str, str]]:
    """One first text with each second, or each first with the second of its place. RequestError for other numbers."""
    ones, others = ([texts] if isinstance(texts, str) else list(texts) for texts in (first, second))
    if not all(isinstance(text, str) for text in (*ones, *others)):
        raise RequestError("score takes texts.", param="text_1")
    if not ones or not others or len(ones) not in (1, len(others)):
        raise RequestError(
            f"score takes one first text, or as many as second ones; got {len(ones)} and {len(others)}.", param="text_1"
        )
    return list(zip(ones * len(others) if len(ones) == 1 else ones, others, strict=True))


class Scoring:
    """How pairs of texts are scored: ``prompts`` are to be pooled with ``params``, and ``scores`` is what that means.

    A model with a classifier reads both texts of a pair at once; of any other the vectors are compared, so each text is
    pooled once however many pairs have it.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]], *, num_labels: int, truncate: int | None) -> None:
        self._pairs = pairs
        self._reads_pairs = num_labels > 0
        self.prompts: Sequence[str | tuple[str, str]] = pairs
        self.params = PoolingParams(task="score", truncate_prompt_tokens=truncate)
        if not self._reads_pairs:
            self.prompts = list(dict.fromkeys(text for pair in pairs for text in pair))
            self.params = PoolingParams(use_activation=True, truncate_prompt_tokens=truncate)

    def scores(self, outputs: Sequence[PoolingRequestOutput]) -> list[PoolingRequestOutput]:
        """One answer per pair, from one output per prompt."""
        if self._reads_pairs:
            return list(outputs)
        vectors = dict(zip(self.prompts, outputs, strict=True))
        return [cosine_output(vectors[one], vectors[other]) for one, other in self._pairs]


def cosine_output(one: PoolingRequestOutput, other: PoolingRequestOutput) -> PoolingRequestOutput:
    """The cosine of two vectors of length 1, as the answer to a pair."""
    cosine = sum(a * b for a, b in zip(one.outputs.data, other.outputs.data, strict=True))
    error = one.error or other.error
    return PoolingRequestOutput(
        request_id=f"{one.request_id}+{other.request_id}",
        outputs=PoolingOutput(data=[] if error else [cosine]),
        prompt_token_ids=one.prompt_token_ids + other.prompt_token_ids,
        num_cached_tokens=one.num_cached_tokens + other.num_cached_tokens,
        error=error,
    )
