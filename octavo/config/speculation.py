"""Who guesses tokens ahead of the model, so that one step may verify several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from octavo.config.fields import Option


@dataclass(frozen=True, kw_only=True)
class SpeculationConfig:
    """What the user asked about speculative decoding."""

    speculative_method: Annotated[
        str,
        Option(
            "Guess tokens and verify several in a step; answers stay the same. ngram = what followed the newest tokens "
            "the last time they were said, draft_model = what speculative_model says, eagle and medusa = what heads of "
            "that kind make of the model's hidden states.",
            choices=("none", "ngram", "draft_model", "eagle", "medusa"),
        ),
    ] = "none"
    speculative_model: Annotated[
        str | None,
        Option("A small model of the same vocabulary that drafts for the model, or heads made for it."),
    ] = None
    num_speculative_tokens: Annotated[
        int, Option("Most tokens guessed for a request in a step.", at_least=1, at_most=128)
    ] = 8
    speculative_verification: Annotated[
        str,
        Option(
            "exact = a draft is right if the model samples it, so answers are those without drafts; rejection = as "
            "Leviathan et al. have it: the same distribution, more drafts accepted where both models are unsure.",
            choices=("exact", "rejection"),
        ),
    ] = "exact"
    prompt_lookup_min: Annotated[
        int, Option("Fewest tokens that must have been said before, for ngram.", at_least=1)
    ] = 2
    prompt_lookup_max: Annotated[int, Option("Most tokens that are looked up, for ngram.", at_least=1)] = 4
    adaptive_speculation: Annotated[
        bool, Option("Shorten or leave out drafts that cost more time than they save, by what was measured.")
    ] = True
