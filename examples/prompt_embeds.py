"""A prompt that is no text: rows of the model's hidden size in place of tokens."""

import numpy as np

from octavo import LLM, SamplingParams

with LLM("smollm2-135m", max_model_len=256, enable_prompt_embeds=True) as llm:
    rows = np.random.default_rng(0).normal(0, 0.1, (5, llm.info.facts.hidden_size)).astype(np.float32)
    (output,) = llm.generate({"prompt_embeds": rows}, SamplingParams(temperature=0, max_tokens=8))
    print(f"after {len(output.prompt_token_ids)} rows: {output.outputs[0].text!r}")
