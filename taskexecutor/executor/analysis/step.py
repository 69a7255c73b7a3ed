"""The input and result of an analyzer: one operator of the graph, and the properties of its
output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from firesteel.common.checkpoints.descriptions import StateDescriptions
from firesteel.common.error_report import summary_of
from firesteel.errors import FiresteelError
from taskexecutor.executor.columnar.cached_plans.composed import unread_frame
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.schemas import declared, to_arrow, to_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_UPSERT = 'or write it to a table by key (PostgresSink(mode="upsert", ...)) and aggregate the table'
BUNDLE = "Bundle"  # the leaf of a plan that does not start with a source


@dataclass(frozen=True, slots=True)
class Frame:
    """A Spark plan, and its leaf as users see it."""

    frame: DataFrame
    leaf: str

    def with_plan(self, frame: DataFrame) -> Frame:
        return Frame(frame, self.leaf)


@dataclass(frozen=True, slots=True)
class Spread:
    """An edge that distributes updates over several subtasks, where they may overtake each
    other.
    """

    what: str  # in words, for errors
    keys: tuple[str, ...] = ()  # only rows with equal values here keep their order; (): no rows do


@dataclass(frozen=True, slots=True, kw_only=True)
class Updating:
    """The upstream operator whose rows are updates of earlier ones, in words for errors."""

    who: str  # name and place in the program
    when: str  # what it emits, and when
    instead: str
    spread: tuple[Spread, ...] = ()  # the edges that its rows have passed


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedChanges:
    """The operator that may drop one of a row's two changes and keep the other."""

    who: str  # name
    why: str  # in words, for errors
    one_kind: bool  # only rows of one kind are left


@dataclass(frozen=True, slots=True, kw_only=True)
class Retracting:
    """The upstream operator whose rows may be deleted, in words for errors."""

    who: str  # name
    because: str  # why rows are deleted
    instead: str
    # between it and here; None: both changes of a row are kept, or neither
    dropped: DroppedChanges | None = None

    @classmethod
    def of_window(cls, who: str) -> Retracting:
        return cls(
            who=who,
            because="late records retract them (allowed_lateness)",
            instead="omit allowed_lateness there",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OldTimes:
    """The upstream join that emits rows with times far behind the watermark."""

    who: str  # name
    # lower-case names of columns that may hold such times; None: any column
    columns: frozenset[str] | None


@dataclass(slots=True, kw_only=True)
class AnalyzedOutput:
    """Properties of an operator's output."""

    schema: pa.Schema | None
    frame: Frame | None = None  # the plan up to here, if Spark runs it
    plan: str = ""  # for users
    final: pa.Schema | None = None  # of a partial aggregate: the schema of its keyed half
    # deletions marked by `row_kind`; None: rows are never deleted
    retracting: Retracting | None = None
    dropped: DroppedChanges | None = None  # dropped changes, by this operator
    settled: bool = False  # it has the column `row_kind` of such rows, but none is deleted
    updating: Updating | None = None  # None: each row is a separate row
    time_advances: bool = False  # whether event time may advance before its rows have ended
    old_times: OldTimes | None = None  # None: no join puts rows behind the watermark
    states: StateDescriptions | None = None  # None: unknown before it runs
    # Whether another attempt produces the same rows from the same input. None: the plan of
    # `frame` decides, where it ends.
    repeatable: bool | None = True
    # Side outputs by tag, if the analyzer knows them.
    sides: dict[str, pa.Schema] = field(default_factory=dict)

    @classmethod
    def on_spark(cls, frame: Frame) -> AnalyzedOutput:
        return cls(schema=to_arrow(frame.frame.schema), frame=frame)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisStep:
    """One operator, with the output that feeds each of its inputs (for a union: the first one)."""

    operator_name: str
    place: str = ""  # in the program
    inputs: Sequence[AnalyzedOutput]
    engine: SparkEngine
    checkpoints: bool = False  # whether the job takes checkpoints
    batch: bool = False

    @property
    def session(self) -> SparkSession:
        return self.engine.session

    @property
    def input_schema(self) -> pa.Schema | None:
        """The schema of the first input; None if it is unknown or there is no input."""
        return self.inputs[0].schema if self.inputs else None

    def updating(self, *, when: str, instead: str) -> Updating:
        """Returns this operator as one that emits rows again when their values change."""
        name = repr(self.operator_name)
        return Updating(
            who=f"{name} ({self.place})" if self.place else name,
            when=when,
            instead=f"{instead}, {_UPSERT}",
        )

    def frame(self) -> Frame:
        """The DataFrame to which the operator is applied: its producer's plan, or a new one where a
        plan starts. It cannot be run.
        """
        producer = self.inputs[0]
        if producer.frame is not None:
            return producer.frame
        if producer.schema is None:
            raise FiresteelError(
                f"{self.operator_name}: the schema of its input is unknown; "
                "declare it on the upstream operator"
            )
        return Frame(unread_frame(self.session, to_spark(producer.schema)), BUNDLE)

    def declared(self, schema: Any, otherwise: pa.Schema | None = None) -> pa.Schema | None:
        """Returns the Arrow schema that the program declares, or `otherwise` if it declares
        none.
        """
        try:
            return declared(schema, otherwise)
        except FiresteelError as error:
            raise FiresteelError(f"{self.operator_name}: {error}") from error
        except Exception as error:
            raise FiresteelError(
                f"{self.operator_name}: its schema {schema!r} does not parse: {summary_of(error)}"
            ) from error


Analyzer: TypeAlias = Callable[[AnalysisStep, Any], AnalyzedOutput]
"""Called with the operator's spec. Raises FiresteelError, or the error of Spark or of a function of
the program.
"""
