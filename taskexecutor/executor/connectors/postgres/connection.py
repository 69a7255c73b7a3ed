"""A connection to PostgreSQL that reconnects after the server restarts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from firesteel.common.backoff import Backoff
from firesteel.common.logs import get_logger
from firesteel.errors import FiresteelError
from firesteel.operator import RuntimeContext
from taskexecutor.executor.connectors.postgres.tables import Target

PATIENCE_S = 60.0  # how long a task waits for an unavailable server
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0

_log = get_logger("task")
_T = TypeVar("_T")


class Connection:
    """Connects on first use, and reconnects when the connection is lost. Used by one thread."""

    def __init__(self, target: Target, context: RuntimeContext) -> None:
        self._target = target
        self._context = context
        self._connection: Any = None

    def transaction(self, work: Callable[[Any, bool], _T], *, repeatable: bool = True) -> _T:
        """Calls `work` with a cursor, and commits. If the connection is lost, calls it again on a
        new connection with True: then it is unknown whether the previous call was committed.

        Raises FiresteelError for errors of the server, for a lost connection unless the work is
        `repeatable`, and if the server is unavailable for a minute.
        """
        again = False
        deadline: float | None = None
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            try:
                connection = self._connected()
                with self._target.explained(), connection, connection.cursor() as cursor:
                    return work(cursor, again)
            except FiresteelError as error:
                connected = self._connection is not None
                if connected and (not self._connection.closed or not repeatable):
                    raise
                if deadline is None:
                    deadline = time.monotonic() + PATIENCE_S
                    _log.warning("PostgreSQL is unavailable; reconnecting", cause=str(error))
                if time.monotonic() >= deadline or self._context.cancelled:
                    raise
                again = again or connected
                self._connection = None
            time.sleep(backoff.next())

    def open(self) -> Any:
        """Returns the connection, or None if it is not open: for optional work."""
        return None if self._connection is None or self._connection.closed else self._connection

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> Any:
        if self._connection is None:
            self._connection = self._target.connect()
        return self._connection
