"""Which text says what was asked: vectors of texts, compared; any causal model can be asked for them, too."""

from __future__ import annotations

from octavo import LLM

QUESTION = "How do cats sleep?"
TEXTS = ["Cats sleep most of the day.", "The stock market fell on Tuesday.", "A dog barks at the moon."]


def main() -> None:
    """Embed a text, and rank texts by what they have in common with a question."""
    with LLM("smollm2-135m", runner="pooling", max_model_len=512) as llm:
        (output,) = llm.embed(QUESTION, use_tqdm=False)
        print(f"{len(output.outputs.data)} numbers, the first of them {output.outputs.data[0]:.4f}")
        scores = llm.score(QUESTION, TEXTS, use_tqdm=False)
        for output, text in sorted(zip(scores, TEXTS, strict=True), key=lambda pair: -pair[0].outputs.data[0]):
            print(f"{output.outputs.data[0]:.3f} {text}")


if __name__ == "__main__":
    main()
