"""A worker that ends its process in the step of a prompt with 13 tokens, and is broken by an answer to one with 11."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from octavo.device.worker.worker import Worker
from octavo.words.graph_report import GraphReport
from octavo.words.messages import SchedulerOutput

POISON_LENGTH = 13
FRAGILE_LENGTH = 11
LAST_STEP = 14
STEPS_FOLDER = "OCTAVO_TEST_STEPS_FOLDER"


class PlantedWorker(Worker):
    """Serves everything but prompts of an unlucky length, which it does not survive.

    In the middle of an answer to a prompt of ``FRAGILE_LENGTH``, if it began here, every step begins to fail.
    """

    is_gone = False
    fragile: str | None = None

    def execute(self, step: SchedulerOutput) -> Any:
        self._wear(step)
        if self.is_gone:
            raise RuntimeError("the device is gone")
        if any(len(request.prompt_token_ids) == POISON_LENGTH for request in step.new_requests):
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().execute(step)

    def _wear(self, step: SchedulerOutput) -> None:
        for request in step.new_requests:
            if len(request.prompt_token_ids) == FRAGILE_LENGTH and not request.output_token_ids:
                self.fragile = request.request_id
        for known in step.cached_requests:
            self.is_gone |= known.request_id == self.fragile and known.num_computed_tokens >= LAST_STEP


class SlowWorker(PlantedWorker):
    """Takes 10 ms more for every step, so that answers last."""

    def execute(self, step: SchedulerOutput) -> Any:
        time.sleep(0.01)
        return super().execute(step)


class SteppedWorker(Worker):
    """Writes the requests of each step into the file ``steps`` of a folder, a line for a step, and computes it when
    the file ``permits`` beside it has a byte for each step so far."""

    num_steps = 0

    def execute(self, step: SchedulerOutput) -> Any:
        if step.num_scheduled_tokens:
            folder = Path(os.environ[STEPS_FOLDER])
            with (folder / "steps").open("a") as steps:
                print(*step.num_scheduled_tokens, file=steps)
            self.num_steps += 1
            deadline = time.monotonic() + 60
            while (folder / "permits").stat().st_size < self.num_steps and time.monotonic() < deadline:
                time.sleep(0.002)
        return super().execute(step)


class SlowToWarmUpWorker(Worker):
    """Says that it warms up, and does so for ever."""

    def warm_up(self) -> GraphReport:
        print("warming up", file=sys.stderr, flush=True)
        time.sleep(600)
        return super().warm_up()
