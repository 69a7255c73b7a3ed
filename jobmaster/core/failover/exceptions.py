"""The history of failures, with the cause of each failure first.

One failure leads to others: a dead producer breaks its consumers. Each failure of the job adds an
entry, and tasks that fail while the job is failing are added to it as follow-ups. The reports of
cause and consequence come from different processes, so a consequence may arrive first. A failure
that only reports a lost peer is therefore replaced by a later one that has the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from firesteel.errors import ErrorInfo
from jobmaster.core.events import LossExplained

_ENTRIES = 16  # failures of the job that are kept
_FOLLOW_UPS = 8  # per failure


@dataclass(slots=True)
class Failure:
    primary: ErrorInfo
    follow_ups: list[ErrorInfo] = field(default_factory=list)


def explained(error: ErrorInfo, event: LossExplained) -> ErrorInfo:
    """Returns the error with the reason of the loss that it reports."""
    summary = "; ".join(filter(None, (error.summary, event.cause)))
    return replace(error, summary="\n".join(filter(None, (summary, event.log))))


class ExceptionHistory:
    def __init__(self, earlier: Iterable[Failure] = ()) -> None:
        """`earlier` has the failures under the job's earlier JobMasters, oldest first."""
        self._failures = [Failure(of.primary, list(of.follow_ups)) for of in earlier]
        self.version = 0  # increases with every failure

    def failed(self, error: ErrorInfo) -> None:
        """Records a failure of the job."""
        self.version += 1
        self._failures.append(Failure(error))
        del self._failures[:-_ENTRIES]

    def also_failed(self, error: ErrorInfo) -> None:
        """Records a further failure while the job is failing."""
        if not self._failures:
            self.failed(error)
            return
        failure = self._failures[-1]
        if failure.primary.consequence and not error.consequence:
            failure.primary, error = error, failure.primary
        self.version += 1
        if len(failure.follow_ups) < _FOLLOW_UPS:
            failure.follow_ups.append(error)

    def explain_loss(self, event: LossExplained) -> None:
        """Adds the reason, which arrived late, to failures that report the loss."""
        for failure in self._failures:
            errors = [failure.primary, *failure.follow_ups]
            if any(error.lost_task_executor == event.task_executor_id for error in errors):
                self.version += 1
                failure.primary, *failure.follow_ups = (
                    explained(error, event)
                    if error.lost_task_executor == event.task_executor_id
                    else error
                    for error in errors
                )

    @property
    def latest(self) -> ErrorInfo | None:
        return self._failures[-1].primary if self._failures else None

    @property
    def failures(self) -> Sequence[Failure]:
        """The failures, oldest first."""
        return self._failures

    def newest_first(self) -> list[ErrorInfo]:
        """Returns the failures, newest first, each followed by its follow-ups."""
        return [
            error
            for failure in reversed(self._failures)
            for error in (failure.primary, *failure.follow_ups)
        ]
