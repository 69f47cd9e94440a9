"""A worker that fails in the step in which a request's prompt has 13 tokens."""

from __future__ import annotations

from typing import Any

from octavo.device.worker.worker import Worker
from octavo.words.messages import SchedulerOutput


class FailingWorker(Worker):
    """Serves everything but prompts of an unlucky length."""

    def execute(self, step: SchedulerOutput) -> Any:
        if any(len(request.prompt_token_ids) == 13 for request in step.new_requests):
            raise RuntimeError("the device is gone")
        return super().execute(step)
