"""A worker that fails in the step in which a request's prompt has 13 tokens, and is slow about one of 12."""

from __future__ import annotations

import time
from typing import Any

from octavo.device.worker.worker import Worker
from octavo.words.messages import SchedulerOutput

NAP_S = 2.0


class FailingWorker(Worker):
    """Serves everything but prompts of an unlucky length."""

    def execute(self, step: SchedulerOutput) -> Any:
        lengths = {len(request.prompt_token_ids) for request in step.new_requests}
        if 13 in lengths:
            raise RuntimeError("the device is gone")
        if 12 in lengths:
            time.sleep(NAP_S)
        return super().execute(step)
