"""A conversation of two turns through the model's own chat template."""

from octavo import LLM, SamplingParams

with LLM("smollm2-135m", max_model_len=1024) as llm:
    params = SamplingParams(temperature=0, max_tokens=32)
    messages = [{"role": "user", "content": "My name is Ada. Say hello to me."}]
    for question in ("What is my name?", None):
        answer = llm.chat(messages, params, use_tqdm=False)[0].outputs[0].text
        print(f"user: {messages[-1]['content']}\nassistant: {answer}")
        if question:
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": question}]
