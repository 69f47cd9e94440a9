"""Errors as text for another process or a user: the root cause is always the last line."""

from __future__ import annotations

import signal
import traceback

from octavo.words.errors import OctavoError
from octavo.words.messages import EngineCoreOutput, EngineCoreRequest, FinishReason

NUM_TRACEBACK_LINES = 20


def describe_death(error: BaseException) -> str:
    """Why a core that was running ended: the end of the traceback."""
    return "\n".join(["the engine core failed in a step:", *_last_lines(error)])


def describe_failed_start(error: BaseException) -> str:
    """Why a core could not be built. Our own errors say it all; of others the end of the traceback is kept."""
    lines = [f"{type(error).__name__}: {error}"] if isinstance(error, OctavoError) else _last_lines(error)
    return "\n".join(["the engine core did not start:", *lines])


def describe_failed_call(name: str, error: BaseException) -> str:
    """One line for a call that raised."""
    return f"call {name!r} failed: {type(error).__name__}: {error}"


def describe_exit(pid: int, returncode: int) -> str:
    """How a process ended that left no word, from ``Popen.returncode`` (negative = signal)."""
    if returncode >= 0:
        return (
            f"the engine core process (pid {pid}) ended with exit code {returncode} and left no word; see its log above"
        )
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    hint = " (the system does this when memory runs out)" if returncode == -signal.SIGKILL else ""
    return f"the engine core process (pid {pid}) was ended by {name}{hint}"


def _last_lines(error: BaseException) -> list[str]:
    return "".join(traceback.format_exception(error)).rstrip().splitlines()[-NUM_TRACEBACK_LINES:]


def failed_outputs(request: EngineCoreRequest, error: str, *, is_refused: bool = False) -> list[EngineCoreOutput]:
    """The last outputs of a request that was never answered: one for each of its answers."""
    return [
        EngineCoreOutput(
            request_id=choice_id,
            new_token_ids=[],
            finish_reason=FinishReason.ERROR,
            error=error,
            is_refused=is_refused,
        )
        for choice_id in request.choice_ids or (request.request_id,)
    ]
