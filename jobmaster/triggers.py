"""The checkpoints that callers have triggered, by the ids that the callers chose.

A caller repeats a call whose answer is lost, possibly through another Dispatcher. The repeated call
gets the outcome of the first one, which continues without its caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from firesteel._proto import job_master_pb2

MAX_ENDED = 100

Response = job_master_pb2.TakeCheckpointResponse


class Triggers:
    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Response]] = {}  # the oldest first

    def start(
        self, trigger_id: str, take: Callable[[], Coroutine[Any, Any, Response]]
    ) -> asyncio.Task[Response]:
        """Returns the task of an earlier call with this id, or else starts `take`."""
        task = self._tasks.get(trigger_id)
        if task is None:
            self._forget_ended()
            task = self._tasks[trigger_id] = asyncio.create_task(take(), name="triggered")
            task.add_done_callback(_retrieve)
        return task

    def find(self, trigger_id: str) -> asyncio.Task[Response] | None:
        return self._tasks.get(trigger_id)

    def _forget_ended(self) -> None:
        ended = [trigger_id for trigger_id, task in self._tasks.items() if task.done()]
        for trigger_id in ended[: max(0, len(ended) - MAX_ENDED + 1)]:
            del self._tasks[trigger_id]


def _retrieve(task: asyncio.Task[Response]) -> None:
    """Retrieves the exception, which is reported to each caller that still waits."""
    if not task.cancelled():
        task.exception()
