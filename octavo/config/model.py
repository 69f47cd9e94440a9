"""Which model, and how it is to be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from octavo.config.fields import Option


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What the user asked about the model."""

    model: Annotated[str, Option("Catalogue name, local folder, .gguf file or hub id.")] = "smollm2-135m"
    tokenizer: Annotated[str | None, Option("Another place to read the tokenizer from (default: the model's).")] = None
    runner: Annotated[
        str,
        Option(
            "What the model is for: generate, or pooling (embed, classify, score); auto = what its checkpoint says.",
            choices=("auto", "generate", "pooling"),
        ),
    ] = "auto"
    revision: Annotated[str | None, Option("Hub revision (branch, tag or commit).")] = None
    dtype: Annotated[
        str,
        Option(
            "Type of weights and activations; auto = bfloat16 where the device has a unit for it, else float32.",
            choices=("auto", "float32", "bfloat16", "float16"),
        ),
    ] = "auto"
    enforce_eager: Annotated[
        bool, Option("Run the model op by op from Python, instead of replaying a captured forward pass.")
    ] = False
    quantization: Annotated[
        str | None,
        Option(
            "Weights: gguf = the file's own block formats (a GGUF file's default), none = dense in dtype (a GGUF file "
            "is dequantised), int8 or int4 = quantised at load; all but none multiply with int8 activations.",
            choices=("none", "gguf", "int8", "int4"),
        ),
    ] = None
    max_model_len: Annotated[
        int | str | None,
        Option(
            "Longest prompt + output in tokens (default: the model's); auto = the longest that fits the KV memory.",
            at_least=1,
            words=("auto",),
        ),
    ] = None
    matryoshka: Annotated[
        bool,
        Option(
            "Let vectors be shortened (dimensions) though the checkpoint does not say that its model is made for it."
        ),
    ] = False
    seed: Annotated[int, Option("Seed from which offline requests without a seed get theirs.", at_least=0)] = 0
    max_logprobs: Annotated[int, Option("Most logprobs a request may ask for; -1 = the vocabulary.", at_least=-1)] = 20
    logprobs_mode: Annotated[
        str,
        Option(
            "Whether returned logprobs are taken before or after penalties, temperature and masks.",
            choices=("raw_logprobs", "processed_logprobs"),
        ),
    ] = "raw_logprobs"
    logits_processors: Annotated[
        str | None,
        Option('Own logits processors, comma-separated "module:Class"; per request they read extra_args (vllm_xargs).'),
    ] = None
    enable_prompt_embeds: Annotated[
        bool, Option("Prompts may be given as embeddings (prompt_embeds); who can send them can send anything.")
    ] = False
    generation_config: Annotated[
        str,
        Option(
            "Where default sampling parameters come from: auto = the model's generation_config, octavo = ours.",
            choices=("auto", "octavo"),
        ),
    ] = "auto"
    chat_template: Annotated[str | None, Option("A chat template (Jinja text or a file) in place of the model's.")] = (
        None
    )
    trust_remote_code: Annotated[bool, Option("Refused: Octavo never runs code from a checkpoint.")] = False
