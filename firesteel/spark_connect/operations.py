"""Executions of commands that the front answers itself.

A client may lose the stream of an execution and attach to it again: responses are kept until the
client releases them, as Spark's server keeps them.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.connect import proto

from firesteel.common.logs import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SessionKey:
    """A session of Spark Connect."""

    user_id: str
    session_id: str

    @classmethod
    def of(cls, request: Any) -> SessionKey:
        """The session of any request of the protocol."""
        return cls(request.user_context.user_id, request.session_id)


class UnknownResponse(Exception):
    """A client attaches after a response that the operation does not have."""


class Operation:
    """One execution. The thread of `run` adds responses; threads of calls read them."""

    def __init__(self, request: proto.ExecutePlanRequest) -> None:
        self.session = SessionKey.of(request)
        self.operation_id = request.operation_id or str(uuid.uuid4())
        self.tags = frozenset(request.tags)
        self.cancelled = threading.Event()
        self._server_side_session_id = request.client_observed_server_side_session_id
        self._responses: list[proto.ExecutePlanResponse] = []
        self._released = 0  # responses before the first of `_responses`
        self._ids: dict[str, int] = {}  # the numbers of the responses
        self._ended = False
        self._failure: Exception | None = None
        self._changed = threading.Condition()
        self._on_cancel: list[Callable[[], None]] = []

    def start(self, work: Callable[[Operation], None]) -> None:
        """Runs `work` in a thread. Its exception ends the operation."""
        threading.Thread(
            target=self._run, args=(work,), name=f"operation-{self.operation_id}", daemon=True
        ).start()

    def _run(self, work: Callable[[Operation], None]) -> None:
        failure: Exception | None = None
        try:
            work(self)
            self.respond(result_complete=proto.ExecutePlanResponse.ResultComplete())
        except Exception as error:
            log.info("a command failed", operation=self.operation_id, exc_info=True)
            failure = error
        with self._changed:
            self._ended, self._failure = True, failure
            self._changed.notify_all()

    def respond(self, **fields: Any) -> None:
        """Adds a response with these fields."""
        response = proto.ExecutePlanResponse(
            session_id=self.session.session_id,
            server_side_session_id=self._server_side_session_id,
            operation_id=self.operation_id,
            response_id=str(uuid.uuid4()),
            **fields,
        )
        with self._changed:
            self._ids[response.response_id] = self._released + len(self._responses)
            self._responses.append(response)
            self._changed.notify_all()

    def responses(
        self, after: str, is_active: Callable[[], bool]
    ) -> Iterator[proto.ExecutePlanResponse]:
        """Yields the responses after the one with this id, or all, until the operation has ended
        or the call is no longer active. Raises the exception of a failed operation, or
        UnknownResponse.
        """
        with self._changed:
            if after and after not in self._ids:
                raise UnknownResponse(after)
            number = self._ids[after] + 1 if after else self._released
        while True:
            with self._changed:
                while not self._is_readable(number) and is_active():  # `wake` is called afterwards
                    self._changed.wait()
                position = number - self._released
                if not is_active():
                    return
                if position >= len(self._responses):
                    break
                response = self._responses[position]
            yield response
            number += 1
        if self._failure is not None:
            raise self._failure

    def _is_readable(self, number: int) -> bool:
        return self._ended or number < self._released + len(self._responses)

    def wake(self) -> None:
        """Lets readers notice that their call has ended."""
        with self._changed:
            self._changed.notify_all()

    def release(self, until: str) -> None:
        """Forgets the responses up to the one with this id."""
        with self._changed:
            number = self._ids.get(until)
            if number is not None and number >= self._released:
                del self._responses[: number + 1 - self._released]
                self._released = number + 1

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when the operation is cancelled; immediately if it already is."""
        with self._changed:
            if not self.cancelled.is_set():
                self._on_cancel.append(callback)
                return
        callback()

    def cancel(self) -> None:
        """Makes the operation end early."""
        with self._changed:
            self.cancelled.set()
            callbacks, self._on_cancel = self._on_cancel, []
        for callback in callbacks:
            callback()


class Operations:
    """The operations of the front, until clients release them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_id: dict[tuple[SessionKey, str], Operation] = {}

    def add(self, operation: Operation) -> None:
        with self._lock:
            self._by_id[operation.session, operation.operation_id] = operation

    def get(self, session: SessionKey, operation_id: str) -> Operation | None:
        with self._lock:
            return self._by_id.get((session, operation_id))

    def release(self, session: SessionKey, operation_id: str) -> None:
        """Cancels and forgets an operation."""
        with self._lock:
            operation = self._by_id.pop((session, operation_id), None)
        if operation is not None:
            operation.cancel()

    def interrupt(
        self, session: SessionKey, chosen: Callable[[Operation], bool] = lambda _: True
    ) -> list[str]:
        """Cancels the chosen operations of a session; returns their ids."""
        with self._lock:
            operations = [
                each for (of, _), each in self._by_id.items() if of == session and chosen(each)
            ]
        for operation in operations:
            operation.cancel()
        return [each.operation_id for each in operations]

    def release_session(self, session: SessionKey) -> None:
        """Cancels and forgets the operations of a session that ends."""
        for operation_id in self.interrupt(session):
            self.release(session, operation_id)
