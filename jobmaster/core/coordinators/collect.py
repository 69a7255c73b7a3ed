"""collect: appends the chunks that the subtasks of a CollectSink send to the spool, each once.

The rows of a job that starts over replace its earlier rows (jobmaster.collected_rows). The rows of
a job that resumes from a checkpoint follow the earlier ones: rows that no complete checkpoint
contains are never published. The rows of a task that a new JobMaster adopts continue after the
stored ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firesteel.common.ids import AttemptId
from firesteel.common.operator_messages import ChunkAcknowledged, ChunkCollected, OperatorMessage
from jobmaster.core.coordinators.base import Coordinator, Spool, UnexpectedMessage


class CollectCoordinator(Coordinator):
    def __init__(self) -> None:
        self._next: dict[AttemptId, int] = {}  # the next sequence number of each attempt
        self._acknowledged: dict[AttemptId, int] = {}  # the number of each attempt's stored chunks
        self._problems: dict[AttemptId, str] = {}  # why an attempt's chunks can no longer be stored
        # Attempts that were requested to resend unanswered chunks, and have not started to.
        self._resending: set[AttemptId] = set()

    def receive(
        self, attempt_id: AttemptId, subtask: int, message: OperatorMessage
    ) -> Sequence[OperatorMessage | Spool]:
        if not isinstance(message, ChunkCollected):
            raise UnexpectedMessage(f"a collect sink sent {type(message).__name__}")
        if problem := self._problems.get(attempt_id):
            return (ChunkAcknowledged(sequence=message.sequence, error=problem),)
        expected = self._next.get(attempt_id, 0)
        if message.sequence <= expected:
            self._resending.discard(attempt_id)
        if (
            message.sequence < expected
        ):  # resent: store it once, but acknowledge it once it is stored
            kept = message.sequence < self._acknowledged.get(attempt_id, 0)
            return (ChunkAcknowledged(sequence=message.sequence),) if kept else ()
        if message.sequence > expected:
            if attempt_id in self._resending:
                return ()  # it is resent after the lost ones
            return (
                ChunkAcknowledged(
                    sequence=message.sequence, error=f"chunk {expected} never arrived"
                ),
            )
        self._next[attempt_id] = expected + 1
        return (
            Spool(sequence=message.sequence, ipc_stream=message.ipc_stream, group=message.group),
        )

    def spooled(
        self, attempt_id: AttemptId, sequence: int, problem: str
    ) -> Sequence[OperatorMessage]:
        if problem:
            self._problems[attempt_id] = problem
        else:
            self._acknowledged[attempt_id] = sequence + 1
        return (ChunkAcknowledged(sequence=sequence, error=problem),)

    def resent(self, attempt_id: AttemptId) -> None:
        self._resending.add(attempt_id)

    def take_kept(self, by_attempt: Mapping[AttemptId, int]) -> None:
        self._next = dict(by_attempt)
        self._acknowledged = dict(by_attempt)

    def attempt_ended(self, attempt_id: AttemptId) -> None:
        self._next.pop(attempt_id, None)
        self._acknowledged.pop(attempt_id, None)
        self._problems.pop(attempt_id, None)
        self._resending.discard(attempt_id)

    def start_over(self) -> None:
        self._next.clear()
        self._acknowledged.clear()
        self._problems.clear()
        self._resending.clear()
