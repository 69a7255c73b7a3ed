"""collect: appends what a CollectSink's subtasks send to the spool, one chunk after the other, each
once.

Without checkpoints a restarted job sends its rows again; that they then count once comes with
exactly-once sinks.
"""

from __future__ import annotations

from collections.abc import Sequence

from firesteel.common.ids import AttemptId
from firesteel.common.operator_messages import ChunkAcknowledged, ChunkCollected, OperatorMessage
from jobmaster.core.coordinators.base import Answers, Spool, UnexpectedMessage


class CollectCoordinator:
    def __init__(self) -> None:
        self._next: dict[AttemptId, int] = {}  # by attempt: the sequence it shall send next
        self._acknowledged: dict[AttemptId, int] = {}  # by attempt: how many were kept
        self._problems: dict[AttemptId, str] = {}  # by attempt: why no more can be kept

    @property
    def ready(self) -> bool:
        return True

    @property
    def paths_to_list(self) -> Sequence[str]:
        return ()

    def paths_listed(self, files: Sequence[str], now: float) -> Answers:
        raise ValueError("a collect sink lists no paths")

    @property
    def watched(self) -> bool:
        return False

    def next_deadline(self) -> float | None:
        return None

    def tick(self, now: float) -> bool:
        return False

    def receive(
        self, attempt_id: AttemptId, subtask: int, message: OperatorMessage
    ) -> Sequence[OperatorMessage | Spool]:
        if not isinstance(message, ChunkCollected):
            raise UnexpectedMessage(f"a collect sink sent {type(message).__name__}")
        if problem := self._problems.get(attempt_id):
            return (ChunkAcknowledged(sequence=message.sequence, error=problem),)
        expected = self._next.get(attempt_id, 0)
        if (
            message.sequence < expected
        ):  # sent again: keep it once, but do acknowledge it once it is kept
            kept = message.sequence < self._acknowledged.get(attempt_id, 0)
            return (ChunkAcknowledged(sequence=message.sequence),) if kept else ()
        if message.sequence > expected:
            return (
                ChunkAcknowledged(
                    sequence=message.sequence, error=f"chunk {expected} never arrived"
                ),
            )
        self._next[attempt_id] = expected + 1
        return (Spool(sequence=message.sequence, ipc_stream=message.ipc_stream),)

    def spooled(
        self, attempt_id: AttemptId, sequence: int, problem: str
    ) -> Sequence[OperatorMessage]:
        if problem:
            self._problems[attempt_id] = problem
        else:
            self._acknowledged[attempt_id] = sequence + 1
        return (ChunkAcknowledged(sequence=sequence, error=problem),)

    def attempt_ended(self, attempt_id: AttemptId) -> None:
        self._next.pop(attempt_id, None)
        self._acknowledged.pop(attempt_id, None)
        self._problems.pop(attempt_id, None)

    def start_over(self) -> None:
        self._next.clear()
        self._acknowledged.clear()
        self._problems.clear()
