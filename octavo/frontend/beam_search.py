"""From the choices of a beam search to its ranked answers."""

from __future__ import annotations

from octavo.tokenizer.tokenizer import Tokenizer
from octavo.words.beam_search import BeamSearch, BeamSearchOutput, BeamSearchSequence
from octavo.words.errors import EngineError
from octavo.words.outputs import CompletionOutput, RequestOutput


def beam_search_output(output: RequestOutput, search: BeamSearch, tokenizer: Tokenizer) -> BeamSearchOutput:
    """The answers of a request, best first. Raises EngineError where there is none, with the reason."""
    found = [choice for choice in output.outputs if choice.finish_reason != "error"]
    if not found:
        raise EngineError(output.outputs[0].error or "the search found no answer")
    return BeamSearchOutput(
        prompt_token_ids=output.prompt_token_ids,
        sequences=[_sequence(output.prompt_token_ids, choice, search, tokenizer) for choice in found],
    )


def _sequence(
    prompt_token_ids: list[int], choice: CompletionOutput, search: BeamSearch, tokenizer: Tokenizer
) -> BeamSearchSequence:
    tokens, logprob = prompt_token_ids + choice.token_ids, choice.cumulative_logprob or 0.0
    return BeamSearchSequence(
        tokens=tokens,
        text=tokenizer.decode(tokens),
        cum_logprob=logprob,
        score=logprob / len(choice.token_ids) ** search.length_penalty,
        output=choice,
    )
