"""What every coordinator offers to the core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from firesteel.common.ids import AttemptId
from firesteel.common.operator_messages import OperatorMessage


class BadOptions(Exception):
    """The options in the JobGraph do not describe a coordinator."""


class UnexpectedMessage(Exception):
    """The operator sent something its coordinator has no use for: the peer's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spool:
    """I/O that a coordinator wants: append this chunk. The outcome comes back through `spooled`."""

    sequence: int
    ipc_stream: bytes = field(repr=False)


# To live attempts that did not just speak: those that waited for what there is now.
Answers: TypeAlias = Sequence[tuple[AttemptId, OperatorMessage]]


class Coordinator(Protocol):
    @property
    def ready(self) -> bool:
        """Whether the job may start. Until then it waits for what `paths_to_list` asked for."""
        ...

    @property
    def paths_to_list(self) -> Sequence[str]:
        """Paths and globs whose files the coordinator must know before it is ready; () for none."""
        ...

    def paths_listed(self, files: Sequence[str], now: float) -> Answers:
        """What `paths_to_list` led to, in the order in which they shall be read."""
        ...

    @property
    def watched(self) -> bool:
        """Whether `paths_to_list` are listed again and again, for files that are new."""
        ...

    def next_deadline(self) -> float | None:
        """When it next wants a `tick`."""
        ...

    def tick(self, now: float) -> bool:
        """True: list the paths again, now."""
        ...

    def receive(
        self, attempt_id: AttemptId, subtask: int, message: OperatorMessage
    ) -> Sequence[OperatorMessage | Spool]:
        """A message from a live attempt: what to answer it, and what to write. Raises
        UnexpectedMessage.
        """
        ...

    def spooled(
        self, attempt_id: AttemptId, sequence: int, problem: str
    ) -> Sequence[OperatorMessage]:
        """What `Spool` resulted in; `problem` is empty if all went well."""
        ...

    def attempt_ended(self, attempt_id: AttemptId) -> None:
        """The attempt failed or was cancelled: what it owned goes to somebody else."""
        ...

    def start_over(self) -> None:
        """All subtasks begin anew, from the beginning."""
        ...
