"""``octavo generate``: answers a batch of prompts and says how fast."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.cli.sampling_flags import add_sampling_arguments, check_sampling_flags, sampling_params_from
from octavo.config.flat import EngineArgs, add_cli_arguments
from octavo.device.platform.torch_library import importing_an_engine
from octavo.words.errors import ConfigError
from octavo.words.outputs import CompletionOutput, Logprob, RequestOutput

DEFAULT_MAX_TOKENS = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="catalogue name, local folder, .gguf file or hub id")
    parser.add_argument("--prompt", action="append", metavar="TEXT", help="a prompt (repeatable)")
    parser.add_argument(
        "--prompt-file", type=Path, metavar="FILE", help="a file with one prompt per line (else: standard input)"
    )
    parser.add_argument(
        "--chat", action="store_true", help="send each prompt as a user's message through the chat template"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per prompt")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    add_sampling_arguments(parser)
    add_cli_arguments(parser, skip=("model", "seed"))


def run(args: argparse.Namespace) -> int:
    with importing_an_engine():
        from octavo.frontend.llm import LLM

    check_sampling_flags(args)
    prompts = read_prompts(args)
    show_bar = not args.no_progress and sys.stderr.isatty()
    # The bar shows throughput too, and lines of statistics would cut it to pieces.
    args.disable_log_stats = getattr(args, "disable_log_stats", show_bar)
    args.runner = getattr(args, "runner", "generate")  # a model that only pools is refused before it is loaded
    with LLM.from_engine_args(EngineArgs.from_cli_args(args)) as llm:
        defaults = llm.get_default_sampling_params().clone(max_tokens=DEFAULT_MAX_TOKENS)
        params = sampling_params_from(args, defaults)
        started = time.perf_counter()
        if args.chat:
            conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
            outputs = llm.chat(conversations, params, use_tqdm=show_bar)
        else:
            outputs = llm.generate(prompts, params, use_tqdm=show_bar)
        elapsed = time.perf_counter() - started
        print_outputs(prompts, outputs, as_json=args.json)
        print(summary(outputs, elapsed, llm.info.phases), file=sys.stderr)
    return 0 if all(choice.finish_reason != "error" for output in outputs for choice in output.outputs) else 1


def read_prompts(args: argparse.Namespace) -> list[str]:
    """Prompts from --prompt, then --prompt-file, else from standard input; one a line, empty lines left out."""
    prompts = list(args.prompt or [])
    if args.prompt_file is not None:
        try:
            prompts += _lines(args.prompt_file.read_bytes(), f"--prompt-file {args.prompt_file}")
        except OSError as error:
            raise ConfigError(f"--prompt-file {args.prompt_file}: {error.strerror}") from None
    elif not prompts and not sys.stdin.isatty():
        prompts = _lines(sys.stdin.buffer.read(), "standard input")
    if not prompts:
        raise ConfigError("no prompt: give --prompt TEXT, --prompt-file FILE, or lines on standard input.")
    return prompts


def _lines(data: bytes, source: str) -> list[str]:
    try:
        return [line for line in data.decode("utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: byte {error.start} is not UTF-8; prompts are text, one a line.") from None


def print_outputs(prompts: Sequence[str], outputs: Sequence[RequestOutput], *, as_json: bool) -> None:
    for prompt, output in zip(prompts, outputs, strict=True):
        if as_json:
            print(json.dumps(as_object(prompt, output), ensure_ascii=False))
            continue
        print(f">>> {prompt}")
        for choice in output.outputs:
            print(f"[error: {choice.error}]" if choice.finish_reason == "error" else choice.text.strip("\n"))
        print()


def as_object(prompt: str, output: RequestOutput) -> dict[str, Any]:
    """One prompt's answer: the first choice's fields, and ``choices`` where n was above 1."""
    choices = [_choice(choice) for choice in output.outputs]
    answer = {"prompt": prompt, **choices[0]}
    if output.prompt_logprobs is not None:
        answer["prompt_logprobs"] = [position and _candidates(position) for position in output.prompt_logprobs]
    if len(choices) > 1:
        answer["choices"] = choices
    return answer


def _choice(choice: CompletionOutput) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "text": choice.text,
        "token_ids": list(choice.token_ids),
        "finish_reason": choice.finish_reason,
    }
    if choice.error is not None:
        fields["error"] = choice.error
    if choice.logprobs is not None:
        fields["logprobs"] = [_candidates(position) for position in choice.logprobs]
    return fields


def _candidates(position: Mapping[int, Logprob]) -> dict[str, dict[str, Any]]:
    return {
        str(token_id): {"logprob": candidate.logprob, "rank": candidate.rank, "token": candidate.decoded_token}
        for token_id, candidate in position.items()
    }


def summary(outputs: Sequence[RequestOutput], elapsed_s: float, phases: dict[str, float]) -> str:
    """One line: requests, tokens, tokens per second, and start-up seconds by phase."""
    num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
    num_output = sum(len(choice.token_ids) for output in outputs for choice in output.outputs)
    startup = ", ".join(f"{name} {seconds:.2f}" for name, seconds in phases.items())
    return (
        f"{len(outputs)} request{'' if len(outputs) == 1 else 's'}, "
        f"{num_prompt} prompt + {num_output} output tokens in {elapsed_s:.2f} s "
        f"({num_output / max(elapsed_s, 1e-9):.1f} tok/s); start-up {sum(phases.values()):.2f} s ({startup})"
    )
