"""Judges a prepared transaction by the broker's description of its transactional id.

Producer id and start time identify a transaction: the broker keeps both after the end of the
transaction, until the next one of the same transactional id starts. The epoch does not identify it,
because one producer commits many transactions with one epoch.

    commit     the transaction is open: commit it
    wait       a commit is under way
    committed  the attempt that failed later, or an operator, has committed it
    aborted    it timed out, or somebody aborted it: its records are lost
    unknown    the broker has forgotten it: only the topic shows what happened
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

UNKNOWN_OFFSET = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class First:
    """The first record of a transaction in one partition."""

    topic: str
    partition: int
    offset: int  # UNKNOWN_OFFSET if the client may not read the topic

    def __str__(self) -> str:
        place = f"topic {self.topic} partition {self.partition}"
        return place if self.offset == UNKNOWN_OFFSET else f"{place} from offset {self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A committable: a transaction whose records the brokers have. Pickled into checkpoints."""

    transactional_id: str
    producer_id: int
    epoch: int
    began_ms: int  # the broker's clock
    checkpoint: int | None  # None: prepared at the end of the input
    records: int
    size_bytes: int
    first: tuple[First, ...]

    @property
    def places(self) -> str:
        return "; ".join(map(str, self.first))


class State(Enum):
    """The states of a transactional id, as brokers name them."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    OTHER = "Unknown"

    @property
    def open(self) -> bool:
        return self in (State.ONGOING, State.PREPARE_EPOCH_FENCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A broker's description of a transactional id."""

    state: State
    producer_id: int
    epoch: int
    began_ms: int
    timeout_ms: int
    partitions: tuple[tuple[str, int], ...]  # topic and number; none after the end

    @property
    def blocks_readers(self) -> bool:
        """Whether readers with read_committed stop at the first records of its transaction."""
        undecided = self.state.open or self.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT)
        return undecided and bool(self.partitions)


class Verdict(Enum):
    COMMIT = "commit"
    WAIT = "wait"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


_OF_THE_SAME = {
    State.ONGOING: Verdict.COMMIT,
    State.PREPARE_COMMIT: Verdict.WAIT,
    State.COMPLETE_COMMIT: Verdict.COMMITTED,
    State.PREPARE_ABORT: Verdict.ABORTED,
    State.COMPLETE_ABORT: Verdict.ABORTED,
    State.PREPARE_EPOCH_FENCE: Verdict.ABORTED,
}


def verdict(prepared: Prepared, found: Description | None) -> Verdict:
    """Judges by the description of its transactional id; None: the broker does not know the id."""
    if found is None or found.producer_id != prepared.producer_id:
        return Verdict.UNKNOWN
    if found.began_ms == prepared.began_ms:
        same = _OF_THE_SAME.get(found.state, Verdict.UNKNOWN)
        # A commit with another epoch would be refused.
        return Verdict.UNKNOWN if same is Verdict.COMMIT and found.epoch != prepared.epoch else same
    if found.epoch == prepared.epoch and found.began_ms > prepared.began_ms:
        # A sink's producer starts a transaction only after the commit of the previous one. Anyone
        # else who ends one raises the epoch.
        return Verdict.COMMITTED
    return Verdict.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalIds:
    """The transactional ids of a sink: `PREFIX-OPERATOR-SUBTASKofPARALLELISM-NUMBER`.

    The operator keeps the sinks of a job apart, and stays the same when a job is restored from a
    savepoint. The parallelism separates the ids that a subtask's restored state knows from others:
    a subtask restores its own committables unless the parallelism has changed.
    """

    prefix: str
    operator_id: str
    subtask: int
    parallelism: int

    @property
    def of_sink(self) -> str:
        """The common start of the ids of all subtasks, at any parallelism."""
        return f"{self.prefix}-{self.operator_id[:8]}-"

    @property
    def of_subtask(self) -> str:
        return f"{self.of_sink}{self.subtask}of{self.parallelism}-"

    def name(self, number: int) -> str:
        return f"{self.of_subtask}{number}"

    def own(self, names: Iterable[str]) -> list[str]:
        """Returns the ids of this subtask at this parallelism."""
        return [name for name in names if name.startswith(self.of_subtask)]

    def inherited(self, names: Iterable[str]) -> list[str]:
        """Returns the ids of another parallelism that are assigned to this subtask."""
        found = []
        for name in names:
            subtask, _, rest = name.removeprefix(self.of_sink).partition("of")
            parallelism, _, number = rest.partition("-")
            if not (subtask.isdecimal() and parallelism.isdecimal() and number.isdecimal()):
                continue  # a longer prefix
            if int(parallelism) != self.parallelism and (
                int(subtask) % self.parallelism == self.subtask
            ):
                found.append(name)
        return found
