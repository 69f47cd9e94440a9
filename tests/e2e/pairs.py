"""Features that are tested in pairs, and the pairs that are refused; docs/features.md is written from these tables."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from octavo import BeamSearch, RequestOutput, StructuredOutputParams
from octavo.device.worker.worker import Worker
from octavo.engine.info import EngineInfo
from octavo.words.messages import SchedulerOutput

SHAPE = "a[a-d]{15}d"
DIES_ONCE = "OCTAVO_TEST_DIES_ONCE"
DRAFT_MODEL = "draft model"
"""Stands for the folder of one, which the test makes."""
BURSTS = "decode bursts"
STEPS_OF_LIFE = 6
"""Of the first core, those of its warm-up included."""


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
    """

    name: str
    proof: Proof
    options: dict[str, Any] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    client: str = "InprocClient"
    has_adapter: bool = False

    @property
    def is_asked_for(self) -> bool:
        """Whether it is a part of the request, so that the plain engine is asked for it too."""
        return bool(self.params) or self.has_adapter


def _choices(ran: Ran) -> list[Any]:
    return [choice for output in ran.outputs for choice in output.outputs]


def _grew(name: str) -> Proof:
    return lambda ran: ran.counted[name] > 0


FEATURES = [
    Feature(
        "structured output",
        lambda ran: all(re.fullmatch(SHAPE, choice.text) for choice in _choices(ran)),
        params={"structured_outputs": StructuredOutputParams(regex=SHAPE)},
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
        lambda ran: ran.counted["octavo:num_steps"] > sum(len(each.prompt_token_ids) for each in ran.outputs) / 7,
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
    Feature("native kernels", lambda ran: ran.info.plan.batch_invariant, {"kernels": "native"}),
    Feature("background process", lambda ran: ran.client != "InprocClient", client="ProcessClient"),
    Feature(
        "death of the core",
        _grew("octavo:engine_restarts"),
        {"worker_cls": "tests.e2e.pairs:DiesOnce"},
        client="Supervisor",
    ),
]
PAIRS = {f"{one.name} + {other.name}": (one, other) for one, other in combinations(FEATURES, 2)}
SPECULATION_AND_BEAMS = (
    "beam search and speculative decoding do not go together: leave out use_beam_search, or start the engine without "
    "--speculative-method."
)
REFUSED = {
    "structured output + beam search": "structured_outputs and beam search do not go together: leave out one of them.",
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
