"""The likeliest answers, best first."""

from octavo import LLM, BeamSearchParams

with LLM("smollm2-135m", max_model_len=512) as llm:
    (output,) = llm.beam_search("The capital of France is", BeamSearchParams(beam_width=4, max_tokens=8))
    for sequence in output.sequences:
        print(f"{sequence.score:.3f} {sequence.text!r}")
