"""A worker that ends its process in the step in which a request's prompt has 13 tokens."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from octavo.device.worker.worker import Worker
from octavo.words.messages import SchedulerOutput

POISON_LENGTH = 13


class PlantedWorker(Worker):
    """Serves everything but prompts of an unlucky length, which it does not survive."""

    def execute(self, step: SchedulerOutput) -> Any:
        if any(len(request.prompt_token_ids) == POISON_LENGTH for request in step.new_requests):
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().execute(step)


class SlowWorker(PlantedWorker):
    """Takes 10 ms more for every step, so that answers last."""

    def execute(self, step: SchedulerOutput) -> Any:
        time.sleep(0.01)
        return super().execute(step)
