"""Source: a description of where a program reads from, and the reader that each of its subtasks
gets.

A source's work is divided into *splits*: a file, a partition of a topic, a range of keys. They are
listed once, where the program runs, when the job is submitted; the JobMaster assigns them to the
subtasks on request, one at a time. A split is JSON, so the JobMaster runs no code of the program.

    program            Source: options, checks, output_schema(), splits()
    JobMaster          assigns the splits (a coordinator per source)
    each subtask       SourceReader: begin(split), poll() until EndOfSplit, close()

`position` and `restore` are for checkpoints: a position tells which part of its split a reader has
emitted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from firesteel.errors import InvalidProgram

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from firesteel.operator import RuntimeContext

Json: TypeAlias = Any  # any value that json.dumps accepts
Split: TypeAlias = Mapping[str, Json]
Position: TypeAlias = Json


class EndOfSplit(Exception):
    """Raised by `SourceReader.poll` at the end of the split."""


class SourceReader(ABC):
    """Reads the splits that are assigned to one subtask, one after another.

    All calls are made on the task's thread, never concurrently. After a failure or a cancellation,
    the next call is `close`.
    """

    # The maximum delay from a `poll` without rows to the next one.
    poll_interval_s: float = 0.05

    def open(self) -> None:  # noqa: B027 - optional
        """Acquires the resources that all splits need, such as a client or a connection."""

    @abstractmethod
    def begin(self, split: Split) -> None:
        """Starts a split at its first row. The previous split has ended."""

    @abstractmethod
    def poll(self) -> pa.RecordBatch | None:
        """Returns the next rows of the split, or None if there are none yet. Raises EndOfSplit.

        The task is blocked during the call, so a poll that has to wait returns None soon.
        """

    @abstractmethod
    def position(self) -> Position:
        """Returns the position in the split, as JSON: all rows that `poll` has returned are before
        it, and all later ones after it.
        """

    @abstractmethod
    def restore(self, position: Position) -> None:
        """Resumes the split at an earlier `position()` of it. Called after `begin`."""

    def close(self) -> None:  # noqa: B027 - optional
        """Releases all resources; called once, on every path."""


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """An operator's coordinator in the JobMaster: its kind, and its options as JSON."""

    kind: str
    options: Mapping[str, Json] = field(default_factory=dict)


class SparkRead(Enum):
    """Whether the Spark plan of a chain reads the source's splits itself."""

    NEVER = "never"
    IF_FOLLOWED = "if followed"  # if only Spark operators directly follow
    ALWAYS = "always"


class Source:
    """Base of all sources. A subclass is a description: it holds options, and is pickled into the
    job.

    A custom source implements `output_schema`, `splits` and `create_reader`. The members at the end
    are for built-in sources, whose splits the JobMaster lists or Spark reads.
    """

    # False if its splits never end, so that operators that would wait for the end, or keep all
    # rows, are refused or cause a warning.
    bounded: ClassVar[bool] = True
    # Whether the source derives the event time of a timestamp column itself.
    finds_event_time: ClassVar[bool] = False
    # Whether it reads partitions side by side, whose rows are ordered, and keeps their watermarks.
    has_partitions: ClassVar[bool] = False

    @property
    def display_name(self) -> str:
        """The operator's title, unless the program sets one."""
        return type(self).__name__

    def resolved(self) -> Self:
        """Returns the source as it is shipped; called when the program adds it. Resolves, for
        example, relative paths against the program's folder. Raises InvalidProgram for invalid
        options.
        """
        return self

    def output_schema(self) -> str | StructType | pa.Schema:
        """Returns columns and types of the rows, as DDL, StructType or Arrow schema.

        Called once, in a slot, before data flows; an exception fails the job.
        """
        raise InvalidProgram(f"{self.display_name} does not implement output_schema()")

    def splits(self, parallelism: int) -> Sequence[Split]:
        """Returns all splits, as dicts that can be encoded as JSON. Called once, when the job is
        submitted.

        A subtask reads one split at a time: if splits never end, there must be at most
        `parallelism` of them.
        """
        raise InvalidProgram(f"{self.display_name} does not implement splits()")

    def create_reader(self, context: RuntimeContext) -> SourceReader:
        """Returns a reader for one subtask."""
        raise InvalidProgram(f"{self.display_name} does not implement create_reader()")

    # -- of built-in sources

    @property
    def spark_read(self) -> SparkRead:
        """Whether Spark reads the rows as part of the plan that follows."""
        return SparkRead.NEVER

    @property
    def ignored_options(self) -> str:
        """Which options have no effect, and why: a warning when the job is submitted; or empty."""
        return ""

    @property
    def fixed_parallelism(self) -> int | None:
        """The only possible parallelism of the source; None: any."""
        return None

    @property
    def side_output_tags(self) -> frozenset[str]:
        """The side outputs of the source."""
        return frozenset()

    def coordinator(self, parallelism: int, *, read_by_spark: bool) -> CoordinatorOptions | None:
        """Returns the enumerator that assigns the source's splits to its subtasks."""
        splits = list(self.splits(parallelism))
        for split in splits:
            if not isinstance(split, Mapping):
                raise InvalidProgram(
                    f"{self.display_name}: splits() must return dicts, "
                    f"not {type(split).__name__} {split!r}"
                )
        options: dict[str, Json] = {"splits": splits}
        if len(splits) <= parallelism:
            options["one_each"] = True  # otherwise a split that never ends would delay others
        return CoordinatorOptions("splits", options)

    def planner(self, *, marked: bool) -> Source | None:
        """Returns a source whose single subtask plans, as rows, what the subtasks of this one
        read.
        """
        return None
