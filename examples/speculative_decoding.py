"""Drafts by what the prompt says: fewer steps, the same answer."""

from octavo import LLM, SamplingParams

PROMPT = "one two three four five six seven eight nine ten one two three"
params = SamplingParams(temperature=0, max_tokens=24)
for method in ("none", "ngram"):
    # By default drafts that do not pay are left out, which so short an answer is too early to tell.
    options = {"speculative_method": method, "adaptive_speculation": False}
    with LLM("smollm2-135m", max_model_len=256, **options) as llm:
        (output,) = llm.generate([PROMPT], params, use_tqdm=False)
        right, drafts = output.metrics.num_accepted_tokens, output.metrics.num_draft_tokens
        print(f"{method}: {output.outputs[0].text!r}, {right} of {drafts} drafts were right")
