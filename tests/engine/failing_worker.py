"""A worker that fails in the step of a prompt with 13 tokens, in every step from one with 11, and naps at one of 12."""

from __future__ import annotations

import time
from typing import Any

from octavo.device.worker.worker import Worker
from octavo.words.messages import SchedulerOutput

NAP_S = 2.0


class FailingWorker(Worker):
    """Serves everything but prompts of an unlucky length."""

    is_gone = False

    def execute(self, step: SchedulerOutput) -> Any:
        lengths = {len(request.prompt_token_ids) for request in step.new_requests}
        self.is_gone = self.is_gone or 11 in lengths
        if 13 in lengths or self.is_gone:
            raise RuntimeError("the device is gone")
        if 12 in lengths:
            time.sleep(NAP_S)
        return super().execute(step)
