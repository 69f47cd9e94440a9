"""The load itself: requests sent at their times, and what came back when."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.bench.serving.http import Connections, HttpError


@dataclass(frozen=True)
class Prompt:
    """One request of a data set: a text or a conversation, its tokens, and how many are asked for."""

    content: str | list[dict[str, Any]]
    prompt_len: int
    output_len: int


@dataclass
class Answer:
    """What became of a request. Seconds of ``time.perf_counter``; ``itls`` are the gaps between pieces of text."""

    prompt_len: int
    start: float = 0.0
    success: bool = False
    error: str = ""
    text: str = ""
    output_len: int = 0
    ttft: float = 0.0
    latency: float = 0.0
    itls: list[float] = field(default_factory=list)

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None where there is only one."""
        return (self.latency - self.ttft) / (self.output_len - 1) if self.output_len > 1 else None


@dataclass(frozen=True, kw_only=True)
class Rates:
    """When requests are sent: ``request_rate`` a second on average, or with a ramp from one rate to another.

    Gaps follow a gamma distribution: burstiness 1 is a Poisson process, less is burstier, more is more even.
    """

    request_rate: float = float("inf")
    burstiness: float = 1.0
    ramp_up_strategy: str | None = None
    ramp_up_start_rps: float = 0.0
    ramp_up_end_rps: float = 0.0

    def at(self, progress: float) -> float:
        """Requests a second when a share of ``progress`` (0..1) was sent."""
        start, end = self.ramp_up_start_rps, self.ramp_up_end_rps
        if self.ramp_up_strategy == "linear":
            return start + (end - start) * progress
        if self.ramp_up_strategy == "exponential":
            return float(start * (end / start) ** progress)
        return self.request_rate

    def times(self, number: int, seed: int) -> list[float]:
        """Seconds from the start at which each request is sent; the same for the same seed.

        Without a ramp the gaps are stretched so that the average is met exactly.
        """
        rng = random.Random(seed)
        gaps = [self._gap(rng, self.at(index / max(number - 1, 1))) for index in range(number - 1)]
        total = sum(gaps)
        if self.ramp_up_strategy is None and total > 0:
            gaps = [gap * ((number - 1) / self.request_rate) / total for gap in gaps]
        return list(_running_sums(gaps))

    def _gap(self, rng: random.Random, rate: float) -> float:
        return 0.0 if rate == float("inf") else rng.gammavariate(self.burstiness, 1 / (rate * self.burstiness))


def _running_sums(gaps: Sequence[float]) -> Iterator[float]:
    now = 0.0
    yield now
    for gap in gaps:
        now += gap
        yield now


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is asked of the server: an endpoint, and the body's fields that all requests share."""

    endpoint: str
    is_chat: bool
    fields: Mapping[str, Any]

    def body(self, prompt: Prompt) -> bytes:
        fields = {**self.fields, "stream": True, "stream_options": {"include_usage": True}}
        if self.is_chat:
            content = prompt.content
            messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
            fields |= {"messages": messages, "max_completion_tokens": prompt.output_len}
        else:
            fields |= {"prompt": prompt.content, "max_tokens": prompt.output_len}
        return json.dumps(fields).encode()

    def text_of(self, choice: Mapping[str, Any]) -> str:
        """What a chunk's choice adds to the answer."""
        if self.is_chat:
            delta = choice.get("delta") or {}
            return (delta.get("content") or "") + (delta.get("reasoning_content") or delta.get("reasoning") or "")
        return choice.get("text") or ""


async def send_all(
    connections: Connections,
    target: Target,
    prompts: Sequence[Prompt],
    times: Sequence[float],
    max_concurrency: int | None = None,
) -> tuple[list[Answer], float]:
    """Send every prompt at its time, at most ``max_concurrency`` at once; returns the answers and the seconds."""
    turn = asyncio.Semaphore(max_concurrency or len(prompts) or 1)
    began = time.perf_counter()

    async def one(prompt: Prompt, at: float) -> Answer:
        await asyncio.sleep(began + at - time.perf_counter())
        async with turn:
            return await send(connections, target, prompt)

    answers = await asyncio.gather(*(one(prompt, at) for prompt, at in zip(prompts, times, strict=True)))
    return list(answers), time.perf_counter() - began


async def send(connections: Connections, target: Target, prompt: Prompt) -> Answer:
    """One request; whatever goes wrong is told in the answer."""
    answer = Answer(prompt.prompt_len)
    body = target.body(prompt)
    answer.start = time.perf_counter()
    try:
        await _read(connections, target, body, answer)
        answer.success = answer.output_len > 0
        answer.error = "" if answer.success else "the answer has no tokens"
    except (HttpError, OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    return answer


async def _read(connections: Connections, target: Target, body: bytes, answer: Answer) -> None:
    last, pieces, num_tokens = answer.start, 0, 0
    async for event in connections.post_stream(target.endpoint, body):
        if event == b"[DONE]":
            continue
        chunk, now = json.loads(event), time.perf_counter()
        if "error" in chunk:
            raise HttpError(str(chunk["error"]))
        text = "".join(target.text_of(choice) for choice in chunk.get("choices") or ())
        if text:
            answer.text += text
            if pieces:
                answer.itls.append(now - last)
            else:
                answer.ttft = now - answer.start
            last, pieces = now, pieces + 1
        num_tokens = (chunk.get("usage") or {}).get("completion_tokens", num_tokens)
    answer.output_len = num_tokens or pieces
    answer.latency = last - answer.start
