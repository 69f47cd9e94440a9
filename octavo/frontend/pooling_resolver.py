"""From what a user asks of a text's numbers to what an engine can follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from octavo.words.errors import RequestError
from octavo.words.inputs import PromptType
from octavo.words.messages import ResolvedSampling
from octavo.words.model_facts import ModelFacts
from octavo.words.pooling_params import PoolingParams
from octavo.words.sampling_params import RequestOutputKind, SamplingParams


class PoolingResolver:
    """Checks what is asked of a model that pools. Thread-safe. All it refuses is a RequestError.

    ``may_shorten``: vectors may be cut to any size, whatever the checkpoint says.
    """

    def __init__(self, facts: ModelFacts, *, may_shorten: bool) -> None:
        self._facts = facts
        self._dimensions = () if may_shorten else facts.matryoshka_dimensions

    def check(self, params: PoolingParams) -> None:
        """Return if the model can give what is asked."""
        if params.task in ("classify", "score") and not self._facts.num_labels:
            raise RequestError(
                f"{params.task}: this model has no classifier; it can embed and token_embed.", param="task"
            )
        if params.dimensions is not None:
            self._check_dimensions(params.dimensions)

    def with_prompt(self, text: PromptType) -> PromptType:
        """A text behind the prompt that the checkpoint puts before every one; token ids are taken as they are."""
        prompt = self._facts.pooling.prompt if self._facts.pooling is not None else ""
        if isinstance(text, str):
            return prompt + text
        given = cast(Mapping[str, object], text) if isinstance(text, Mapping) else {}
        if isinstance(asked := given.get("prompt"), str):
            return cast(PromptType, {**given, "prompt": prompt + asked})
        return text

    def resolve(self, params: PoolingParams) -> ResolvedSampling:
        """What the core is told in place of sampling parameters: the one token it may count is never said."""
        return ResolvedSampling(
            params=SamplingParams(max_tokens=1, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY),
            seed=0,
            max_tokens=1,
            num_text_tokens=self._facts.vocab_size,
            pooling=params,
        )

    def _check_dimensions(self, asked: int) -> None:
        if asked > self._facts.hidden_size:
            problem = (
                f"dimensions must be at most {self._facts.hidden_size}, which this model's vectors have; got {asked}."
            )
        elif self._dimensions is None:
            problem = (
                "dimensions: nothing says that this model's vectors may be shortened (matryoshka in its config.json); "
                "start with matryoshka=True (--matryoshka) if you know that they may."
            )
        elif self._dimensions and asked not in self._dimensions:
            problem = f"dimensions can be {', '.join(map(str, self._dimensions))} with this model; got {asked}."
        else:
            return
        raise RequestError(problem, param="dimensions")
