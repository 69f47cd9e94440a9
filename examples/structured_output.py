"""An answer that is JSON of a given shape, whatever the model would rather say."""

from __future__ import annotations

import json

from octavo import LLM, SamplingParams, StructuredOutputParams

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "continent": {"enum": ["Africa", "America", "Asia", "Europe", "Oceania"]},
    },
    "required": ["city", "continent"],
    "additionalProperties": False,
}

with LLM("smollm2-135m", max_model_len=1024) as llm:
    params = SamplingParams(temperature=0, max_tokens=48, structured_outputs=StructuredOutputParams(json=SCHEMA))
    for country in ("France", "Japan"):
        messages = [{"role": "user", "content": f"What is the capital of {country}? Answer as JSON."}]
        text = llm.chat(messages, params, use_tqdm=False)[0].outputs[0].text
        print(country, json.loads(text))
