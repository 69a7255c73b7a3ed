"""The base of specs, and the traits that plans and analysis ask of an operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from firesteel.connectors.source import CoordinatorOptions


class NeededTime(NamedTuple):
    """An input whose rows must not be older than the watermark."""

    input: int
    column: str  # the event-time column; empty: only the program's function knows it


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkAlignmentSpec:
    """A source pauses while it is more than `max_drift_us` ahead of the slowest of its group."""

    group: str
    max_drift_us: int
    update_interval_us: int


@dataclass(frozen=True, slots=True)
class Spec:
    """The behavior of an operator as plain data.

    Its other members are traits: the defaults are those of a function that processes each row
    independently and has no state. A kind overrides them with values or, where they depend on its
    fields, with properties.
    """

    # The module with its analysis and runtime, for a kind that is not part of Firesteel. Slots
    # import it; programs do not.
    slot_half: ClassVar[str] = ""
    is_sink: ClassVar[bool] = False
    # Whether it runs Python functions of the program, which may need pandas, in the task's process.
    uses_pandas: ClassVar[bool] = True
    # Whether checkpoints contain its state in columns, which are known before it runs.
    state_in_columns: ClassVar[bool] = False
    # Whether it emits nothing before its input ends.
    waits_for_end: ClassVar[bool] = False

    @property
    def kind(self) -> str:
        return type(self).__name__.removesuffix("Spec")

    @property
    def runs_on_spark(self) -> bool:
        """Whether it can be part of a Spark plan together with its neighbors."""
        return False

    @property
    def side_outputs(self) -> Mapping[str, Any]:
        """The declared schemas of its side outputs by tag; None: that of the first input."""
        return {}

    @property
    def side_output_tags(self) -> frozenset[str]:
        """The tags that it may use with `Output.emit_side`."""
        return frozenset(self.side_outputs)

    # -- changes of rows

    @property
    def counts_rows(self) -> bool:
        """Whether it relates rows to each other, and would count an update as an additional row."""
        return False

    @property
    def applies_changes(self) -> bool:
        """Whether it can undo what a row has contributed when the row is deleted."""
        return False

    @property
    def sees_each_update(self) -> bool:
        """Whether a function with state receives each update, and decides how to treat it."""
        return False

    def instead_of_changes(self, input_index: int) -> str:
        """Returns the advice for an input with deleted rows; "": that of their operator."""
        return ""

    # -- event time

    # Whether its rows have other times than those of its inputs.
    sets_times: ClassVar[bool] = False

    @property
    def begins_event_time(self) -> bool:
        """Whether its watermarks are independent of the times of its input rows."""
        return False

    @property
    def emits_watermarks(self) -> bool | None:
        """Whether it assigns watermarks; None: only the program knows."""
        return False

    # Whether all sources of its job report that they are idle once they have caught up, and idle
    # inputs of an operator count for its watermark.
    needs_idle_sources: ClassVar[bool] = False

    @property
    def watermark_alignment(self) -> WatermarkAlignmentSpec | None:
        return None

    @property
    def needed_times(self) -> list[NeededTime]:
        """The inputs from which it takes event time."""
        return []

    @property
    def sets_event_timers(self) -> bool:
        """Whether its function may set event-time timers, directly or in a function it calls."""
        return False

    @property
    def waits_for_watermarks(self) -> str:
        """The rows that it emits only after watermarks of all inputs, for messages; "": none."""
        return ""

    @property
    def result_times(self) -> tuple[str, ...] | None:
        """The event-time columns that are never behind its watermark, if it combines rows with
        different times; None: it does not.
        """
        return None

    def time_advances(self, before: bool) -> bool:
        """Whether event time may advance downstream before its rows have ended. `before`: whether
        it does upstream.
        """
        return before

    def with_delayed_watermark(self) -> Self:
        """Returns the operator with a watermark that no row's time is behind, in a stream.
        Called if `result_times` is not None.
        """
        return self

    # -- what it keeps

    @property
    def keeps_until_watermark(self) -> bool:
        """Whether it keeps rows until the watermarks of all inputs have passed them."""
        return False

    @property
    def instead_of_growing(self) -> str:
        """The advice for an operator that keeps all rows of an endless stream; "": it does not."""
        return ""

    # -- modes

    @property
    def broadcast_first(self) -> bool:
        """Whether its second input is read to its end before the first starts."""
        return False

    def in_batch(self) -> Self:
        """Returns the operator as it runs in batch mode."""
        return self

    @property
    def fixed_parallelism(self) -> int | None:
        """The only possible parallelism of the operator; None: any."""
        return None

    def coordinator(self, parallelism: int, *, read_by_spark: bool) -> CoordinatorOptions | None:
        """Returns its coordinator in the JobMaster, if it needs one."""
        return None
