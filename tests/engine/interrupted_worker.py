"""A worker that Ctrl-C hits in the middle of a step: as often as the newest prompt has tokens above 100."""

from __future__ import annotations

import os
import signal
from typing import Any

from octavo.device.worker.worker import Worker
from octavo.words.messages import SchedulerOutput

HARMLESS_LENGTH = 100


class InterruptedWorker(Worker):
    """Serves everything; a prompt of 101 tokens brings one Ctrl-C, one of 102 tokens two."""

    def execute(self, step: SchedulerOutput) -> Any:
        longest = max((len(request.prompt_token_ids) for request in step.new_requests), default=0)
        for _ in range(longest - HARMLESS_LENGTH):
            os.kill(os.getpid(), signal.SIGINT)
        return super().execute(step)
