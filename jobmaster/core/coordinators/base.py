"""The interface of coordinators to the core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeAlias

from firesteel.common.file_parts import ListedFile
from firesteel.common.ids import AttemptId
from firesteel.common.operator_messages import HeldSplit, OperatorMessage

Json: TypeAlias = Any  # any value that json.loads returns
Options: TypeAlias = Mapping[str, Json]


class BadOptions(Exception):
    """The options in the JobGraph do not describe a coordinator."""


class UnexpectedMessage(Exception):
    """The operator sent a message that its coordinator does not handle: the peer's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spool:
    """Requests to append this chunk. The outcome is passed to `spooled`."""

    sequence: int
    ipc_stream: bytes = field(repr=False)
    group: str = ""


class Answer(NamedTuple):
    """A message to a live attempt that waited for it."""

    attempt_id: AttemptId
    message: OperatorMessage


class Coordinator:
    """The part of an operator that exists once per job. It is pure: it answers with messages and
    requests for I/O, and time is an argument.

    A subclass overrides the methods that it needs.
    """

    # Paths and globs that must be listed before the coordinator is ready.
    paths_to_list: Sequence[str] = ()
    # Whether they are listed repeatedly to find new files.
    watched: bool = False

    @classmethod
    def from_options(cls, options: Options) -> Self:
        """Creates a coordinator. Raises BadOptions."""
        return cls()

    @property
    def ready(self) -> bool:
        """Whether the job may start. If not, it waits for `paths_listed`."""
        return True

    def paths_listed(self, files: Sequence[ListedFile], now: float) -> Sequence[Answer]:
        """Receives the files that match `paths_to_list`, in the order in which to read them."""
        raise ValueError(f"{type(self).__name__} lists no paths")

    def next_deadline(self) -> float | None:
        """Returns when to call `tick` next."""
        return None

    def tick(self, now: float) -> bool:
        """Returns whether to list the paths again now."""
        return False

    def receive(
        self, attempt_id: AttemptId, subtask: int, message: OperatorMessage
    ) -> Sequence[OperatorMessage | Spool]:
        """Handles a live attempt's message; returns answers and I/O. Raises UnexpectedMessage."""
        raise UnexpectedMessage(f"{type(self).__name__} got a {type(message).__name__}")

    def spooled(
        self, attempt_id: AttemptId, sequence: int, problem: str
    ) -> Sequence[OperatorMessage]:
        """Handles the outcome of a `Spool`; `problem` is empty if it succeeded."""
        return ()

    def assigned(self, attempt_id: AttemptId) -> int:
        """Returns the number of splits assigned to the attempt, whether they have arrived or
        not.
        """
        return 0

    @property
    def found_version(self) -> int:
        """Increases with what `found` returns."""
        return 0

    def found(self, snapshot: Json) -> Json:
        """Returns, as JSON, the listing that another master might not reproduce, apart from the
        part in this snapshot (None: no snapshot). Returns None if there is nothing to add.
        """
        return None

    def take_found(self, found: Json) -> None:
        """Takes over the value of `found` from an earlier master. `restore` was called before."""

    def adopt(self, attempt_id: AttemptId, subtask: int, held: Sequence[HeldSplit]) -> str:
        """Takes over an attempt that an earlier master started, with these assigned splits.
        `restore` was called before. Returns why the attempt cannot continue; empty if it can.
        """
        return ""

    def adopt_finished(self, attempt_id: AttemptId, subtask: int, places: Sequence[int]) -> str:
        """Takes over a finished attempt, given the places of its splits."""
        return ""

    def assigned_to_all(self) -> int:
        """Returns the number of splits assigned to all attempts together."""
        return 0

    def backlog(self) -> Mapping[str, int]:
        """Returns the work that no attempt was assigned yet, by metric. Empty: none or unknown."""
        return {}

    def owned(self, attempt_id: AttemptId) -> Sequence[int] | None:
        """Returns the places of the attempt's assigned splits; None if they are unknown."""
        return None

    def reads_anew(self, subtask: int) -> bool:
        """Whether the subtask's next attempt may read something different from the last one."""
        return False

    def resent(self, attempt_id: AttemptId) -> None:
        """The attempt was requested to resend unanswered messages, because some may be lost."""

    def take_kept(self, by_attempt: Mapping[AttemptId, int]) -> None:
        """Receives the number of each attempt's chunks that were stored under earlier masters."""

    def attempt_ended(self, attempt_id: AttemptId) -> None:
        """Releases the splits of an attempt that failed or was cancelled."""

    def subtask_starts_over(self, attempt_id: AttemptId, subtask: int, *, finished: bool) -> None:
        """The subtask starts from the beginning, while others continue. With `finished`, its
        attempt had finished; consumers may have read its rows, so the next attempt must produce the
        same rows.
        """
        self.attempt_ended(attempt_id)

    def start_over(self) -> None:
        """Restarts all subtasks from the beginning."""

    def snapshot(self) -> Json:
        """Returns, as JSON, state for a checkpoint that the subtasks' snapshots do not contain."""
        return None

    def mismatch(self, snapshot: Json) -> str:
        """Returns why it cannot resume from a snapshot, which a different version of the program
        may have written; empty if it can.
        """
        return ""

    def restore(self, snapshot: Json) -> None:
        """Restarts all subtasks, and the coordinator, from a checkpoint."""
        self.start_over()
