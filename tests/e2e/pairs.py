"""Features that are tested in pairs, and the pairs that are refused; docs/features.md is written from these tables."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from octavo import BeamSearch, RepetitionDetectionParams, RequestOutput, StructuredOutputParams, _native
from octavo.device.worker.worker import Worker
from octavo.engine.info import EngineInfo
from octavo.words.messages import SchedulerOutput

MOST_TOKENS = 32
SHAPE, SHAPE_BEGUN = "a[a-d]{15}d", "a[a-d]{0,15}"
WORDS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
"""A random model says such words for ever: only the closing path brings them to their end."""
BUDGET, END_OF_THOUGHTS = 3, "</think>"
NO_TWINS = "tests.own_logits_processors:NoTwins"
DIES_ONCE = "OCTAVO_TEST_DIES_ONCE"
DRAFT_MODEL = "draft model"
"""Stands for the folder of one, which the test makes."""
BURSTS = "decode bursts"
STEPS_OF_LIFE = 6
"""Of the first core, those of its warm-up included."""


class KernelCounts:
    """A worker's extension: how often native kernels ran in its process."""

    def __init__(self, worker: Worker) -> None:
        pass

    def kernel_counts(self) -> dict[str, int]:
        """Calls by kernel, on whatever instruction set."""
        counts: Counter[str] = Counter()
        for name, calls in dict(_native.kernel_counts()).items():
            counts[name.partition(".")[0]] += calls
        return dict(counts)


class DiesOnce(Worker):
    """Ends its process after a few steps, unless the file that the environment names says that this was done."""

    num_steps = 0

    def execute(self, step: SchedulerOutput) -> Any:
        self.num_steps += 1
        mark = Path(os.environ[DIES_ONCE])
        if self.num_steps > STEPS_OF_LIFE and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(step)


@dataclass(frozen=True)
class Ran:
    """What an engine did for a pair: its answers, what its counters grew by, and what it is."""

    outputs: list[RequestOutput]
    counted: dict[str, float]
    info: EngineInfo
    client: str


Proof = Callable[[Ran], bool]


@dataclass(frozen=True)
class Feature:
    """``options`` of the engine, ``params`` of the request, and what proves that it was at work.

    Features that are asked for change the answer; others only how it comes about, so that it must stay the same.
    ``second_params`` are those of every second request, where they differ.
    """

    name: str
    proof: Proof
    options: dict[str, Any] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    second_params: dict[str, Any] = field(default_factory=dict)
    client: str = "InprocClient"
    has_adapter: bool = False
    gives_embeds: bool = False

    @property
    def is_asked_for(self) -> bool:
        """Whether it is a part of the request, so that the plain engine is asked for it too."""
        return bool(self.params) or self.has_adapter

    @property
    def is_of_engine(self) -> bool:
        """Whether it needs an engine of its own."""
        return bool(self.options) or self.client != "InprocClient"

    def params_of(self, number: int) -> dict[str, Any]:
        """The parameters of a request by its number."""
        return self.second_params if self.second_params and number % 2 else self.params


def _choices(ran: Ran) -> list[Any]:
    return [choice for output in ran.outputs for choice in output.outputs]


def _grew(*names: str) -> Proof:
    return lambda ran: all(ran.counted[name] > 0 for name in names)


def _have_their_shapes(ran: Ran) -> bool:
    """Every answer, by the number of its request: a regular expression, or JSON that is brought to its end."""
    return all(
        _has_shape(choice.text.rpartition(END_OF_THOUGHTS)[2], choice.finish_reason, is_json=number % 2 == 1)
        for number, output in enumerate(ran.outputs)
        for choice in output.outputs
    )


def _has_shape(text: str, reason: str | None, *, is_json: bool) -> bool:
    if reason == "repetition":
        return re.fullmatch(r"\[.*" if is_json else SHAPE_BEGUN, text, re.DOTALL) is not None
    return reason == "stop" and (_is_words(text) if is_json else re.fullmatch(SHAPE, text) is not None)


def _is_words(text: str) -> bool:
    try:
        words = json.loads(text)
    except ValueError:
        return False
    return bool(words) and all(isinstance(word, str) for word in words)


def _end_their_thoughts(ran: Ran) -> bool:
    thoughts_end = [choice.text.find(END_OF_THOUGHTS) for choice in _choices(ran)]
    return ran.counted["thinking_budget"] > 0 and all(0 <= end <= BUDGET for end in thoughts_end)


def _end_where_they_loop(ran: Ran) -> bool:
    """Some answers do, and none goes on after it has said a token or two five times."""
    reasons = {choice.finish_reason for choice in _choices(ran)}
    went_on = [choice for choice in _choices(ran) if re.search(r"(.{1,2})\1{4}.", choice.text, re.DOTALL)]
    return "repetition" in reasons and not went_on


FEATURES = [
    Feature(
        "structured output",
        _have_their_shapes,
        params={"structured_outputs": StructuredOutputParams(regex=SHAPE)},
        second_params={"structured_outputs": StructuredOutputParams(json=WORDS), "allowed_token_ids": None},
    ),
    Feature(
        "n-gram speculation",
        _grew("vllm:spec_decode_num_accepted_tokens"),
        {"speculative_method": "ngram", "prompt_lookup_min": 1, "adaptive_speculation": False},
    ),
    Feature(
        "draft model",
        _grew("vllm:spec_decode_num_accepted_tokens"),
        {
            "speculative_method": "draft_model",
            "speculative_model": DRAFT_MODEL,
            "num_speculative_tokens": 4,
            "adaptive_speculation": False,
        },
    ),
    Feature("LoRA", _grew("lora rows"), {"enable_lora": True}, has_adapter=True),
    Feature("prefix cache", _grew("vllm:prefix_cache_hits"), {"enable_prefix_caching": True}),
    Feature(
        "chunked prefill",
        _grew("octavo:num_prefill_chunks"),
        {"max_num_batched_tokens": 7, "max_num_seqs": 4},
    ),
    Feature("preemption", _grew("vllm:num_preemptions"), {"num_gpu_blocks_override": 8}),
    Feature("n = 3", lambda ran: all(len(output.outputs) == 3 for output in ran.outputs), params={"n": 3}),
    Feature(
        "logprobs",
        lambda ran: all(len(choice.logprobs or ()) == len(choice.token_ids) for choice in _choices(ran)),
        params={"logprobs": 2},
    ),
    Feature(BURSTS, _grew("octavo:num_burst_steps"), {"max_burst_ms": 1000.0}),
    Feature("beam search", _grew("octavo:num_beam_forks"), params={"beam_search": BeamSearch(width=3)}),
    Feature("native kernels", _grew("linear", "paged_attention"), {"kernels": "native"}),
    Feature("background process", lambda ran: ran.client != "InprocClient", client="ProcessClient"),
    Feature(
        "death of the core",
        _grew("octavo:engine_restarts"),
        {"worker_cls": "tests.e2e.pairs:DiesOnce"},
        client="Supervisor",
    ),
    Feature(
        "own logits processor",
        lambda ran: ran.counted[NO_TWINS] > 0 and not any("bb" in choice.text for choice in _choices(ran)),
        {"logits_processors": NO_TWINS},
        {"extra_args": {"no_twins_of": ord("b")}},
    ),
    Feature(
        "budget of thought",
        _end_their_thoughts,
        {"chat_template": "{{ '" + END_OF_THOUGHTS + "' }}"},
        {"thinking_token_budget": BUDGET},
    ),
    Feature(
        "repetition detection",
        _end_where_they_loop,
        params={"repetition_detection": RepetitionDetectionParams(min_pattern_size=1, max_pattern_size=2, min_count=5)},
    ),
    Feature(
        "prompt embeds",
        lambda ran: not any(any(output.prompt_token_ids) for output in ran.outputs),
        {"enable_prompt_embeds": True},
        gives_embeds=True,
    ),
]
PAIRS = {f"{one.name} + {other.name}": (one, other) for one, other in combinations(FEATURES, 2)}
SPECULATION_AND_BEAMS = (
    "beam search and speculative decoding do not go together: leave out use_beam_search, or start the engine without "
    "--speculative-method."
)
NOT_WITH_BEAMS = "{} and beam search do not go together: leave out one of them."
REFUSED = {
    "structured output + beam search": NOT_WITH_BEAMS.format("structured_outputs"),
    "beam search + repetition detection": NOT_WITH_BEAMS.format("repetition_detection"),
    "n-gram speculation + beam search": SPECULATION_AND_BEAMS,
    "draft model + beam search": SPECULATION_AND_BEAMS,
}
ONE_OPTION = {"n-gram speculation + draft model": "Both are values of one option, --speculative-method."}
"""Pairs that nobody can ask for."""
BETWEEN_STEPS = "Works, and such steps are taken one by one: something is decided between them."
SINGLE_STEPS = {
    f"structured output + {BURSTS}": BETWEEN_STEPS,
    f"n-gram speculation + {BURSTS}": BETWEEN_STEPS,
    f"draft model + {BURSTS}": BETWEEN_STEPS,
    f"{BURSTS} + beam search": BETWEEN_STEPS,
}
"""Pairs of which the first leaves nothing to the second."""
NO = {**REFUSED, **ONE_OPTION, **SINGLE_STEPS}


def page() -> str:
    """docs/features.md."""
    names = [feature.name for feature in FEATURES]
    numbers = {reason: number for number, reason in enumerate(dict.fromkeys(NO.values()), 1)}
    rows = [[name, *(_cell(name, other, names, numbers) for other in names[1:])] for name in names[:-1]]
    lines = ["# What goes with what", "", INTRODUCTION, "", _line(["", *names[1:]]), _line(["---"] * len(names))]
    lines += [_line(row) for row in rows]
    lines += ["", "Notes:", "", *(f"{number}. {reason}" for reason, number in numbers.items()), ""]
    return "\n".join(lines)


INTRODUCTION = """\
Every pair of these runs in the tests (`tests/e2e/test_pairs.py`) on a small random model: counters prove that both were
at work, and where a feature only changes how an answer is computed, it is that of a plain engine: to the bit, and
between native kernels and plain torch to 1e-4. `make docs` writes this page from the table of that test."""


def _cell(name: str, other: str, names: list[str], numbers: dict[str, int]) -> str:
    if names.index(other) <= names.index(name):
        return ""
    pair = f"{name} + {other}"
    if pair not in NO:
        return "yes"
    return f"{'single steps' if pair in SINGLE_STEPS else 'no'} ({numbers[NO[pair]]})"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
