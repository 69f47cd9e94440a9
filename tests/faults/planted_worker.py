"""A worker that ends its process in the step of a prompt with 13 tokens, and is broken by an answer to one with 11."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from octavo.device.worker.worker import Worker
from octavo.words.graph_report import GraphReport
from octavo.words.messages import SchedulerOutput

POISON_LENGTH = 13
FRAGILE_LENGTH = 11
LAST_STEP = 14


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


class SlowToWarmUpWorker(Worker):
    """Says that it warms up, and does so for ever."""

    def warm_up(self) -> GraphReport:
        print("warming up", file=sys.stderr, flush=True)
        time.sleep(600)
        return super().warm_up()
