"""Two requests share a long prefix: the second finds its keys and values in the cache, and the counters show it."""

from octavo import LLM, SamplingParams

PREFIX = "You are a careful librarian. " * 24
QUESTIONS = ["Where are the maps?", "Where are the poems?"]

with LLM("smollm2-135m", max_model_len=1024, block_size=16) as llm:
    params = SamplingParams(temperature=0, max_tokens=8)
    outputs = [llm.generate(PREFIX + question, params, use_tqdm=False)[0] for question in QUESTIONS]
    for question, output in zip(QUESTIONS, outputs, strict=True):
        print(f"{question:<22} prompt {len(output.prompt_token_ids)} tokens, {output.num_cached_tokens} from the cache")
    hits = next(metric for metric in llm.get_metrics() if metric.name == "vllm:prefix_cache_hits")
    print(f"{hits.name} = {hits.value:.0f} tokens")
    assert outputs[0].num_cached_tokens == 0
    assert outputs[1].num_cached_tokens > 0
