"""Small models loop: an answer that repeats itself ends, and says why."""

from octavo import LLM, RepetitionDetectionParams, SamplingParams

LOOPS = RepetitionDetectionParams(min_pattern_size=2, max_pattern_size=16, min_count=3)

with LLM("smollm2-135m", max_model_len=256) as llm:
    for detection in (None, LOOPS):
        params = SamplingParams(temperature=0, max_tokens=64, repetition_detection=detection)
        (output,) = llm.generate("one two three four one two three four", params, use_tqdm=False)
        choice = output.outputs[0]
        print(f"{choice.finish_reason} after {len(choice.token_ids)} tokens: {choice.text!r}")
