"""What an analyser gets and returns: one operator of the graph, and what is known of its output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from firesteel.common.checkpoints.descriptions import StateDescriptions
from firesteel.common.error_report import summary_of
from firesteel.errors import FiresteelError
from taskexecutor.executor.spark.jvm.engine import SparkEngine
from taskexecutor.executor.spark.plans.composed import unread_frame
from taskexecutor.executor.spark.schemas import declared, to_arrow, to_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


BUNDLE = "Bundle"  # the leaf of a plan that does not begin with a source


@dataclass(frozen=True, slots=True)
class Frame:
    """A Spark plan, and what stands at its leaf in the plan that users see."""

    frame: DataFrame
    leaf: str

    def with_plan(self, frame: DataFrame) -> Frame:
        return Frame(frame, self.leaf)


@dataclass(frozen=True, slots=True)
class Spread:
    """An edge that spreads updates over several subtasks, which may overtake each other."""

    what: str  # in words for an error
    keys: tuple[str, ...] = ()  # only rows with the same values here keep their order; (): none do


@dataclass(frozen=True, slots=True, kw_only=True)
class Updating:
    """The operator before whose rows are updates of earlier ones, in words for an error."""

    who: str  # its name and place in the program
    when: str  # what it emits, and when
    instead: str
    spread: tuple[Spread, ...] = ()  # the edges that its rows have passed


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """The operator that may leave out a row's change of one kind, and keep the other."""

    who: str  # its name
    why: str  # in words for an error
    one_kind: bool  # only rows of one kind are left


@dataclass(frozen=True, slots=True, kw_only=True)
class Retracting:
    """The operator before whose rows may go away, in words for an error."""

    who: str  # its name
    because: str  # what takes rows away
    instead: str
    left_out: LeftOut | None = None  # between it and here; None: both changes of a row, or neither

    @classmethod
    def of_window(cls, who: str) -> Retracting:
        return cls(
            who=who,
            because="late records take them away (allowed_lateness)",
            instead="leave out allowed_lateness there",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OldTimes:
    """The join before that emits rows with times far behind the watermark."""

    who: str  # its name
    columns: frozenset[str] | None  # whose times may be, in lower case; None: any column's


@dataclass(slots=True, kw_only=True)
class AnalyzedOutput:
    """What is known of an operator's output."""

    schema: pa.Schema | None
    frame: Frame | None = None  # the plan up to here, if Spark runs it
    plan: str = ""  # for users
    final: pa.Schema | None = None  # of a partial aggregate: the schema of its keyed half
    retracting: Retracting | None = None  # the column `row_kind` tells; None: rows stay
    left_out: LeftOut | None = None  # changes, by this operator
    settled: bool = False  # it has the column `row_kind` of such rows, and none goes away
    updating: Updating | None = None  # None: each row is a row of its own
    time_advances: bool = False  # whether event time may advance before its rows have ended
    old_times: OldTimes | None = None  # None: no row is behind the watermark because of a join
    states: StateDescriptions | None = None  # None: they are not known before it runs
    repeatable: bool = True  # another attempt produces the same rows of the same input
    # Side outputs by tag, as far as the analyser knows them.
    sides: dict[str, pa.Schema] = field(default_factory=dict)

    @classmethod
    def on_spark(cls, frame: Frame) -> AnalyzedOutput:
        return cls(schema=to_arrow(frame.frame.schema), frame=frame)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisStep:
    """One operator, with the outputs that feed each of its inputs (of a union: the first one)."""

    operator_name: str
    inputs: Sequence[AnalyzedOutput]
    engine: SparkEngine
    checkpoints: bool = False  # whether the job takes them
    batch: bool = False

    @property
    def session(self) -> SparkSession:
        return self.engine.session

    @property
    def input_schema(self) -> pa.Schema | None:
        """Of the first input; None if it is not known or there is none."""
        return self.inputs[0].schema if self.inputs else None

    def frame(self) -> Frame:
        """The DataFrame that the operator is applied to: its producer's plan, or a new one where
        a plan begins. It cannot be run.
        """
        producer = self.inputs[0]
        if producer.frame is not None:
            return producer.frame
        if producer.schema is None:
            raise FiresteelError(
                f"{self.operator_name}: the schema of its input is not known; "
                "declare one on the operator before it"
            )
        return Frame(unread_frame(self.session, to_spark(producer.schema)), BUNDLE)

    def declared(self, schema: Any, otherwise: pa.Schema | None = None) -> pa.Schema | None:
        """The Arrow schema that the program declares; `otherwise` if it declares none."""
        try:
            return declared(schema, otherwise)
        except FiresteelError as error:
            raise FiresteelError(f"{self.operator_name}: {error}") from error
        except Exception as error:
            raise FiresteelError(
                f"{self.operator_name}: its schema {schema!r} does not parse: {summary_of(error)}"
            ) from error


Analyzer: TypeAlias = Callable[[AnalysisStep, Any], AnalyzedOutput]
"""Called with the operator's spec. Raises what is wrong with it: FiresteelError, or what Spark or a
function of the program raised.
"""
