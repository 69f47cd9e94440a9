"""A logits processor of one's own: answers without the letter that a request does not like."""

from octavo import LLM, SamplingParams


class WithoutTokens:
    """Requests name in ``extra_args`` the token ids that they do not want."""

    def __init__(self, vocab_size: int) -> None:
        self.unwanted: dict[int, list[int]] = {}

    def add(self, slot, request) -> None:
        self.unwanted[slot] = (request.sampling.params.extra_args or {}).get("without", [])

    def remove(self, slot) -> None:
        self.unwanted.pop(slot, None)

    def apply(self, logits, batch) -> bool:
        for row, slot in enumerate(batch.slots):
            logits[row, self.unwanted[slot]] = float("-inf")
        return any(self.unwanted[slot] for slot in batch.slots)


if __name__ == "__main__":
    with LLM("smollm2-135m", max_model_len=256, logits_processors="__main__:WithoutTokens") as llm:
        e_tokens = [i for i in range(llm.info.facts.vocab_size) if b"e" in llm.get_tokenizer().token_bytes(i)]
        params = SamplingParams(temperature=0, max_tokens=16, extra_args={"without": e_tokens})
        print(llm.generate("The capital of France is", params)[0].outputs[0].text)
