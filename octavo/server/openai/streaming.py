"""Streams of OpenAI's two kinds of completion: frames, errors inside a stream, several prompts at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

import msgspec

from octavo.frontend.async_llm import AsyncLLM
from octavo.frontend.input_processor import PreparedRequest
from octavo.server.api_error import as_api_error, failed_choice
from octavo.server.responses import encode_json
from octavo.words.outputs import RequestOutput

DONE = b"data: [DONE]\n\n"


def frame(message: msgspec.Struct | dict[str, object]) -> bytes:
    """One event, on one line."""
    return b"data: " + encode_json(message) + b"\n\n"


async def ended(frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The frames, an error frame where they fail, and the frame that ends a stream."""
    try:
        async for each in frames:
            yield each
    except Exception as error:
        yield frame(as_api_error(error).body)
    finally:
        await frames.aclose()
    yield DONE


def check_not_failed(output: RequestOutput) -> None:
    """Raise the error of a choice that failed in the engine."""
    for choice in output.outputs:
        if choice.finish_reason == "error":
            raise failed_choice(choice.error, is_refused=choice.is_refused)


async def run_one(
    llm: AsyncLLM, prepared: PreparedRequest, timeout_s: float | None
) -> AsyncGenerator[RequestOutput, None]:
    """The outputs of one prompt; raises where a choice failed."""
    outputs = llm.run(prepared, timeout_s=timeout_s)
    try:
        async for output in outputs:
            check_not_failed(output)
            yield output
    finally:
        await outputs.aclose()


async def run_all(
    llm: AsyncLLM, prepared: Sequence[PreparedRequest], timeout_s: float | None
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """The outputs of several prompts as they come, each with the index of its prompt."""
    if len(prepared) == 1:
        outputs = run_one(llm, prepared[0], timeout_s)
        try:
            async for output in outputs:
                yield 0, output
        finally:
            await outputs.aclose()
        return
    # One place: a prompt whose output waits to be read goes on, and its next output holds all that came.
    queue: asyncio.Queue[tuple[int, RequestOutput | Exception | None]] = asyncio.Queue(1)
    tasks = [asyncio.create_task(_feed(queue, i, run_one(llm, each, timeout_s))) for i, each in enumerate(prepared)]
    num_running = len(tasks)
    try:
        while num_running:
            index, found = await queue.get()
            if isinstance(found, Exception):
                raise found
            if found is None:
                num_running -= 1
            else:
                yield index, found
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(Exception):
            await asyncio.gather(*tasks, return_exceptions=True)


async def _feed(
    queue: asyncio.Queue[tuple[int, RequestOutput | Exception | None]],
    index: int,
    outputs: AsyncGenerator[RequestOutput, None],
) -> None:
    try:
        async for output in outputs:
            await queue.put((index, output))
        await queue.put((index, None))
    except Exception as error:
        await queue.put((index, error))
    finally:
        await outputs.aclose()
