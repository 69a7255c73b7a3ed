"""The last changes of the job's parallelism, for users."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from firesteel.common.ids import VertexId
from firesteel.common.rescales import KEPT, Outcome, Rescale, StageEntered
from firesteel.common.states import JobStatus

_INTERRUPTED = {
    JobStatus.FINISHED: Outcome.JOB_FINISHED,
    JobStatus.FAILING: Outcome.JOB_FAILING,
    JobStatus.FAILED: Outcome.JOB_FAILING,
    JobStatus.RESTARTING: Outcome.JOB_FAILOVER_RESTARTING,
    JobStatus.CANCELLING: Outcome.JOB_CANCELING,
    JobStatus.CANCELED: Outcome.JOB_CANCELING,
}


class RescaleHistory:
    """At most the last record is in progress."""

    def __init__(
        self, earlier: Iterable[Rescale], stored: Mapping[VertexId, int], now_ms: int
    ) -> None:
        """`earlier` has the records of earlier JobMasters, oldest first. Their last change became
        effective if it is the stored parallelism, `stored`.
        """
        self._records = list(earlier)
        self.version = 0  # increases with every change
        if self._open:
            done = self._records[-1].after == stored
            outcome = Outcome.SUCCEEDED if done else Outcome.EXCEPTION_OCCURRED
            problem = "" if done else "the JobMaster ended before the parallelism was stored"
            self._update(end_ms=now_ms, outcome=outcome, problem=problem)

    @property
    def records(self) -> Sequence[Rescale]:
        """Oldest first."""
        return self._records

    @property
    def next_number(self) -> int:
        return self._records[-1].number + 1 if self._records else 1

    def started(self, record: Rescale) -> None:
        self._records.append(record)
        del self._records[:-KEPT]
        self.version += 1

    def entered(self, stage: str, after: Mapping[VertexId, int], now_ms: int) -> None:
        stages = (*self._records[-1].stages, StageEntered(stage, now_ms))
        self._update(stages=stages, after=after)

    def ended(self, status: JobStatus, problem: str, now_ms: int) -> None:
        """`status` is that of the job."""
        outcome = Outcome.SUCCEEDED
        if problem:
            outcome = _INTERRUPTED.get(status, Outcome.EXCEPTION_OCCURRED)
        elif not self._records[-1].changes:
            outcome = Outcome.NO_RESOURCES_OR_PARALLELISMS_CHANGE
        self._update(end_ms=now_ms, outcome=outcome, problem=problem)

    @property
    def _open(self) -> bool:
        return bool(self._records) and self._records[-1].outcome is Outcome.IN_PROGRESS

    def _update(self, **changes: object) -> None:
        self._records[-1] = replace(self._records[-1], **changes)  # type: ignore[arg-type]
        self.version += 1
