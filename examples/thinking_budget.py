"""Thoughts first, but not for long: after thinking_token_budget tokens the tag that ends them is forced.

SmolLM2 is no model that thinks, so a template of our own opens its thoughts; one that does needs no chat_template.
"""

from octavo import LLM, SamplingParams

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n<think>\n"
)

with LLM("smollm2-135m", max_model_len=512, chat_template=TEMPLATE) as llm:
    for budget in (4, 16):
        params = SamplingParams(temperature=0, max_tokens=40, thinking_token_budget=budget)
        (output,) = llm.chat([{"role": "user", "content": "Why is the sky blue?"}], params, use_tqdm=False)
        thoughts, _, answer = output.outputs[0].text.partition("</think>")
        print(f"{budget} tokens of thought: {thoughts!r}, then the answer: {answer!r}")
