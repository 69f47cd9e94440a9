"""Answers a batch of prompts with one engine: the smallest use of Octavo as a library."""

from octavo import LLM, SamplingParams

PROMPTS = ["The capital of France is", "Once upon a time", "def fibonacci(n):"]

llm = LLM("smollm2-135m", max_model_len=1024)
outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=24))

for output in outputs:
    choice = output.outputs[0]
    print(f"{output.prompt!r} -> {choice.text!r} ({choice.finish_reason})")
llm.close()
