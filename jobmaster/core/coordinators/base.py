"""What every coordinator offers to the core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeAlias

from firesteel.common.file_parts import ListedFile
from firesteel.common.ids import AttemptId
from firesteel.common.operator_messages import HeldSplit, OperatorMessage

Json: TypeAlias = Any  # what json.loads returns
Options: TypeAlias = Mapping[str, Json]


class BadOptions(Exception):
    """The options in the JobGraph do not describe a coordinator."""


class UnexpectedMessage(Exception):
    """The operator sent something that its coordinator has no use for: the peer's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spool:
    """I/O that a coordinator wants: append this chunk. The outcome comes back as `spooled`."""

    sequence: int
    ipc_stream: bytes = field(repr=False)
    group: str = ""


class Answer(NamedTuple):
    """A message to a live attempt that waited for it."""

    attempt_id: AttemptId
    message: OperatorMessage


class Coordinator:
    """The part of an operator that exists once per job. It is pure: it answers with messages and
    with I/O that it wants, and time is an argument.

    A subclass overrides what it has a use for.
    """

    # Paths and globs whose files the coordinator must know before it is ready.
    paths_to_list: Sequence[str] = ()
    # Whether they are listed repeatedly, for new files.
    watched: bool = False

    @classmethod
    def from_options(cls, options: Options) -> Self:
        """Raises BadOptions."""
        return cls()

    @property
    def ready(self) -> bool:
        """Whether the job may start. Until then it waits for `paths_listed`."""
        return True

    def paths_listed(self, files: Sequence[ListedFile], now: float) -> Sequence[Answer]:
        """The files that `paths_to_list` lead to, in the order in which they are to be read."""
        raise ValueError(f"{type(self).__name__} lists no paths")

    def next_deadline(self) -> float | None:
        """When it next wants a `tick`."""
        return None

    def tick(self, now: float) -> bool:
        """True: list the paths again, now."""
        return False

    def receive(
        self, attempt_id: AttemptId, subtask: int, message: OperatorMessage
    ) -> Sequence[OperatorMessage | Spool]:
        """A message from a live attempt; returns answers and I/O. Raises UnexpectedMessage."""
        raise UnexpectedMessage(f"{type(self).__name__} got a {type(message).__name__}")

    def spooled(
        self, attempt_id: AttemptId, sequence: int, problem: str
    ) -> Sequence[OperatorMessage]:
        """The outcome of a `Spool`; `problem` is empty if it succeeded."""
        return ()

    def assigned(self, attempt_id: AttemptId) -> int:
        """How many splits the attempt was assigned, whether they have arrived or not."""
        return 0

    @property
    def found_version(self) -> int:
        """Increases with what `found` returns."""
        return 0

    def found(self, snapshot: Json) -> Json:
        """What it has found to read and another master would not find so again, besides what is in
        this snapshot (None: there is none); as JSON. None: nothing.
        """
        return None

    def take_found(self, found: Json) -> None:
        """What `found` has returned under an earlier master. `restore` came before."""

    def adopt(self, attempt_id: AttemptId, subtask: int, held: Sequence[HeldSplit]) -> str:
        """An attempt that an earlier master started was assigned these splits. `restore` came
        before. Returns why it cannot go on; empty: it can.
        """
        return ""

    def adopt_finished(self, attempt_id: AttemptId, subtask: int, places: Sequence[int]) -> str:
        """The same of one that has finished, by the places of its splits."""
        return ""

    def owned(self, attempt_id: AttemptId) -> Sequence[int] | None:
        """The places of the splits that the attempt was assigned; None: that is not known."""
        return None

    def reads_anew(self, subtask: int) -> bool:
        """Whether the subtask's next attempt may read something else than its last one."""
        return False

    def resent(self, attempt_id: AttemptId) -> None:
        """The attempt is asked to send again what is unanswered: messages of it may be lost."""

    def take_kept(self, by_attempt: Mapping[AttemptId, int]) -> None:
        """How many chunks of each attempt were kept under earlier masters."""

    def attempt_ended(self, attempt_id: AttemptId) -> None:
        """The attempt failed or was cancelled: what it owned becomes available again."""

    def subtask_starts_over(self, attempt_id: AttemptId, subtask: int, *, finished: bool) -> None:
        """The subtask starts from the beginning, others go on. `finished`: whether its attempt had;
        consumers may have read what that produced, so the next one produces the same rows.
        """
        self.attempt_ended(attempt_id)

    def start_over(self) -> None:
        """All subtasks start from the beginning."""

    def snapshot(self) -> Json:
        """For a checkpoint: what is not in the snapshots of the subtasks, as JSON."""
        return None

    def mismatch(self, snapshot: Json) -> str:
        """Why it cannot go on from a snapshot, which another version of the program may have left;
        empty: it can.
        """
        return ""

    def restore(self, snapshot: Json) -> None:
        """All subtasks start from a checkpoint, and with it the coordinator."""
        self.start_over()
