"""Operations that take long, whose outcomes clients poll by an id."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Coroutine
from typing import Any

import grpc

from dispatcher.rest.requests import Refusal
from firesteel.common.ids import random_id
from firesteel.errors import FiresteelError

KEPT_S = 300.0  # after the end, as in Flink
MAX_RUNNING = 1_000
_ID = re.compile(r"[0-9a-f]{32}")


def reason_for_failure(error: grpc.aio.AioRpcError | Refusal) -> str:
    """Returns why an operation failed, for its client."""
    if isinstance(error, Refusal):
        return str(error)
    return error.details() or error.code().name


class Operations:
    def __init__(self) -> None:
        self._running: dict[str, asyncio.Task[Any]] = {}
        self._ended_s: dict[str, float] = {}

    def start(self, operation: Coroutine[Any, Any, Any], given_id: str = "") -> str:
        """Starts the operation, unless one of this id exists; returns its id. Raises FiresteelError
        for an id that is not 32 hexadecimal digits, and if too many operations run.
        """
        self._forget_old()
        operation_id = given_id or random_id()
        if operation_id in self._running:
            operation.close()
            return operation_id
        if not _ID.fullmatch(operation_id):
            operation.close()
            raise FiresteelError(
                f"triggerId {operation_id[:80]!r} is not an id: expected 32 lower-case hex"
                " characters"
            )
        if len(self._running) >= MAX_RUNNING:
            operation.close()
            raise FiresteelError("too many operations are running; try again later")
        task = asyncio.ensure_future(operation)
        task.add_done_callback(lambda _: self._ended(operation_id))
        self._running[operation_id] = task
        return operation_id

    def find(self, operation_id: str) -> asyncio.Task[Any] | None:
        return self._running.get(operation_id)

    def forget(self, operation_id: str) -> None:
        """Forgets an operation that has ended."""
        self._ended_s.pop(operation_id, None)
        self._running.pop(operation_id, None)

    async def stop(self) -> None:
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _ended(self, operation_id: str) -> None:
        task = self._running.get(operation_id)
        if task is None:
            return
        self._ended_s[operation_id] = time.monotonic()
        if not task.cancelled():
            task.exception()  # it is reported to those who poll

    def _forget_old(self) -> None:
        old = [i for i, at_s in self._ended_s.items() if time.monotonic() - at_s > KEPT_S]
        for operation_id in old:
            del self._ended_s[operation_id], self._running[operation_id]
