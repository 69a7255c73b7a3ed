"""Source: what a program reads from, and the reader that each of its subtasks gets.

A source's work is divided into *splits*: a file, a partition of a topic, a range of keys. They are
listed once, when the job is submitted, where the program runs; the JobMaster hands them to the
subtasks, one at a time, to whichever asks first. A split is JSON, so the JobMaster runs no code of
the program's.

    program            Source: options, checks, output_schema(), splits()
    JobMaster          hands out the splits (a coordinator per source)
    each subtask       SourceReader: begin(split), poll() until EndOfSplit, close()

`position` and `restore` are for checkpoints: a position is what a reader has emitted of its split.
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

Json: TypeAlias = Any  # what json.dumps accepts
Split: TypeAlias = Mapping[str, Json]
Position: TypeAlias = Json


class EndOfSplit(Exception):
    """Raised by `SourceReader.poll`: the split has been read to its end."""


class SourceReader(ABC):
    """Reads the splits that one subtask is assigned, one after the other.

    All calls are made on the task's thread, never two at once. A failure or a cancellation leads
    from wherever the reader is to `close`.
    """

    # How long after a `poll` that found nothing the next one follows, at most.
    poll_interval_s: float = 0.05

    def open(self) -> None:  # noqa: B027 - optional
        """Acquires what all splits need: a client, a connection."""

    @abstractmethod
    def begin(self, split: Split) -> None:
        """Begins a split, at its beginning. The one before has ended."""

    @abstractmethod
    def poll(self) -> pa.RecordBatch | None:
        """The next rows of the split, or None if there are none yet. Raises EndOfSplit.

        The task does nothing else meanwhile, so a poll that has to wait returns None soon.
        """

    @abstractmethod
    def position(self) -> Position:
        """How far the split has been emitted, as JSON: all that `poll` has returned is before it,
        and all that it will return behind it.
        """

    @abstractmethod
    def restore(self, position: Position) -> None:
        """Called after `begin`: continues the split at an earlier `position()` of it."""

    def close(self) -> None:  # noqa: B027 - optional
        """Releases everything; called once, on every path."""


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """An operator's coordinator in the JobMaster: its kind, and its options as JSON."""

    kind: str
    options: Mapping[str, Json] = field(default_factory=dict)


class SparkRead(Enum):
    """Whether the Spark plan of a chain begins with the source's splits."""

    NEVER = "never"
    IF_FOLLOWED = "if followed"  # by Spark operators, at once and by nothing else
    ALWAYS = "always"


class Source:
    """Base of all sources. A subclass is a description: it holds options, and is pickled into the
    job.

    A source of your own implements `output_schema`, `splits` and `create_reader`. The members at
    the end are for the built-in ones, whose splits the JobMaster finds or Spark reads.
    """

    # What slots make of the source, as "module:Class"; a string, because programs do not import
    # the task runtime.
    runtime: ClassVar[str] = "taskexecutor.executor.connectors.split_source:SplitSource"
    # Whether it ends; False for one whose splits never do, so that what would wait for its end, or
    # keep all of its rows, is refused or warned of.
    bounded: ClassVar[bool] = True
    # Whether the source finds the event time of a timestamp column itself.
    finds_event_time: ClassVar[bool] = False

    @property
    def display_name(self) -> str:
        """The operator's title, unless the program names it."""
        return type(self).__name__

    def resolved(self) -> Self:
        """The source as it is shipped, made when the program names it: relative paths mean the
        folder of the program, for example. Raises InvalidProgram for options that make no sense.
        """
        return self

    def output_schema(self) -> str | StructType | pa.Schema:
        """Columns and types of the rows, as DDL, StructType or Arrow schema.

        Called once, in a slot, before data flows; what it raises fails the job.
        """
        raise InvalidProgram(f"{self.display_name} does not implement output_schema()")

    def splits(self, parallelism: int) -> Sequence[Split]:
        """All splits, each a dict that JSON can hold. Called once, when the job is submitted.

        A subtask reads one split at a time: if splits never end, there must be at most
        `parallelism` of them.
        """
        raise InvalidProgram(f"{self.display_name} does not implement splits()")

    def create_reader(self, context: RuntimeContext) -> SourceReader:
        """A reader for one subtask."""
        raise InvalidProgram(f"{self.display_name} does not implement create_reader()")

    # -- of built-in sources

    @property
    def spark_read(self) -> SparkRead:
        """Whether Spark reads the rows, as part of the plan that follows."""
        return SparkRead.NEVER

    @property
    def fixed_parallelism(self) -> int | None:
        """The only parallelism that the source can have; None: any."""
        return None

    @property
    def side_output_tags(self) -> frozenset[str]:
        """The side outputs that the source has."""
        return frozenset()

    def coordinator(self, parallelism: int, *, read_by_spark: bool) -> CoordinatorOptions | None:
        """The enumerator that assigns the source's splits to its subtasks."""
        splits = list(self.splits(parallelism))
        for split in splits:
            if not isinstance(split, Mapping):
                raise InvalidProgram(
                    f"{self.display_name}: splits() must return dicts, "
                    f"not {type(split).__name__} {split!r}"
                )
        options: dict[str, Json] = {"splits": splits}
        if len(splits) <= parallelism:
            options["one_each"] = True  # or one that never ends would keep others waiting
        return CoordinatorOptions("splits", options)

    def planner(self, *, marked: bool) -> Source | None:
        """A source whose single subtask plans, as rows, what the subtasks of this one read."""
        return None
