"""SplitEnumerator: hands out splits one by one; each is owned by exactly one live attempt
(invariant 17).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from firesteel.common.ids import AttemptId
from firesteel.common.operator_messages import (
    OperatorMessage,
    SplitAssigned,
    SplitRequested,
    SplitsExhausted,
)
from jobmaster.core.coordinators.base import Answers, Spool, UnexpectedMessage


class SplitEnumerator:
    """Splits are numbered from 0; a subclass tells how many there are and what each one is.

    A request says how many splits its attempt has had. So one that is said again, because an answer
    may be lost, is answered with the split that was assigned before.

    Of an unbounded source there may be more later: a reader that asks when there is none is
    answered then.

    An attempt that ends without finishing gives back all it was assigned: without a checkpoint,
    nothing that it read counts. Those splits are handed out again first, in order.
    """

    def __init__(self) -> None:
        self._next = 0  # the first split nobody has had yet
        self._returned: list[int] = []  # heap of splits given back
        self._owned: dict[AttemptId, list[int]] = {}
        self._waiting: dict[
            AttemptId, None
        ] = {}  # readers that have asked and not been answered, in the order they did

    # a subclass answers these

    def split_count(self) -> int:
        raise NotImplementedError

    def split_json(self, number: int) -> str:
        raise NotImplementedError

    @property
    def ready(self) -> bool:
        return True

    @property
    def paths_to_list(self) -> Sequence[str]:
        return ()

    @property
    def bounded(self) -> bool:
        """Whether `split_count` is final."""
        return True

    def paths_listed(self, files: Sequence[str], now: float) -> Answers:
        raise ValueError("this source lists no paths")

    @property
    def watched(self) -> bool:
        return False

    def next_deadline(self) -> float | None:
        return None

    def tick(self, now: float) -> bool:
        return False

    # the protocol

    def receive(
        self, attempt_id: AttemptId, subtask: int, message: OperatorMessage
    ) -> Sequence[OperatorMessage | Spool]:
        if not isinstance(message, SplitRequested):
            raise UnexpectedMessage(
                f"a source sent {type(message).__name__} to its split enumerator"
            )
        owned = self._owned.setdefault(attempt_id, [])
        if message.received > len(owned):
            raise UnexpectedMessage(
                f"a source claims to have had {message.received} splits; it was assigned {len(owned)}"
            )
        if message.received < len(owned):
            return (
                SplitAssigned(
                    number=message.received, split_json=self.split_json(owned[message.received])
                ),
            )
        number = self._take()
        if number is not None:
            return (self._assign(attempt_id, number),)
        if self.bounded:
            return (SplitsExhausted(),)
        self._waiting[attempt_id] = None
        return ()

    def serve_waiting(self) -> Answers:
        """There may be more splits now."""
        served: list[tuple[AttemptId, OperatorMessage]] = []
        while self._waiting and (number := self._take()) is not None:
            attempt_id = next(iter(self._waiting))
            served.append((attempt_id, self._assign(attempt_id, number)))
        return served

    def _take(self) -> int | None:
        """The next split that nobody owns."""
        if self._returned:
            return heapq.heappop(self._returned)
        if self._next >= self.split_count():
            return None
        self._next += 1
        return self._next - 1

    def _assign(self, attempt_id: AttemptId, number: int) -> SplitAssigned:
        owned = self._owned.setdefault(attempt_id, [])
        owned.append(number)
        self._waiting.pop(attempt_id, None)
        return SplitAssigned(number=len(owned) - 1, split_json=self.split_json(number))

    def spooled(
        self, attempt_id: AttemptId, sequence: int, problem: str
    ) -> Sequence[OperatorMessage]:
        return ()

    def attempt_ended(self, attempt_id: AttemptId) -> None:
        self._waiting.pop(attempt_id, None)
        for number in self._owned.pop(attempt_id, ()):
            heapq.heappush(self._returned, number)

    def start_over(self) -> None:
        self._next = 0
        self._returned.clear()
        self._owned.clear()
        self._waiting.clear()
