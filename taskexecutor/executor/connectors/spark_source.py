"""A source that Spark reads, with the Spark operators after it: splits are read within the plan,
invisible to Python.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel.common.operator_messages import HeldSplit
from firesteel.connectors.source import Split
from firesteel.elements import StreamStatus
from firesteel.operator import Output, RuntimeContext, SourceOperator
from firesteel.operators import Spec
from taskexecutor.executor.columnar.stages.stage import SparkStage
from taskexecutor.executor.connectors.splits import Begun, Splits, merged
from taskexecutor.executor.timing.bundle_time import TARGET_S

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class SparkSourceStage(SparkStage, SourceOperator):
    """Reads splits in bundles of bounded work; each bundle is emitted completely."""

    inputs = 0
    poll_interval_s = None  # only the coordinator can provide more
    idle_between_splits = False  # other sources need not wait for it while it has no split

    def __init__(self, specs: Sequence[Spec], output_schema: pa.Schema | None) -> None:
        super().__init__(specs, output_schema)
        self._splits = Splits()
        self._split: Split | None = None  # has started and not ended

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._records_in = context.counter("numRecordsIn")

    @property
    def caught_up(self) -> bool:
        return self.waiting and self._splits.caught_up

    @property
    def splits_received(self) -> int:
        return self._splits.received

    @property
    def splits_held(self) -> Sequence[HeldSplit]:
        return self._splits.held

    def handle_coordinator_event(self, event: Any) -> None:
        self._splits.handle(event, self.context)

    def poll(self, max_wait_s: float) -> bool:
        self.waiting = False
        self._request()
        if self._split is None and not self._begun():
            self.waiting = not self._splits.exhausted
            if self.caught_up and self.idle_between_splits:
                self.output.emit_status(StreamStatus(True))
            return self.waiting
        begun_s = self.context.busy_s
        split, self._split = self._split, None  # if reading fails, the split ends
        while self._read_bundle():
            if self.context.busy_s - begun_s >= TARGET_S:
                self._split = split
                return True
        self._end()
        self._end_rows(self._row_schema())
        return True

    def _read_bundle(self) -> bool:
        rows, more = self._read()
        self._records_in.inc(rows)
        return more

    def _begun(self) -> bool:
        """Starts the next split, if there is one."""
        if not self._splits.waiting:
            return False
        split, at, _ = self._splits.begin()
        # Now, not with its first row: rows of other splits must not overtake it.
        self.output.emit_status(StreamStatus(False))
        self._request()  # requests the next one while this one is read
        self._begin(split, at)
        self._split = split
        return True

    def _request(self) -> None:
        if not self._splits.waiting:
            self._splits.ask(self.context)

    def position(self) -> Any:
        begun = Begun(self._split, self._at()) if self._split is not None else None
        return self._splits.position(begun)

    def merged(self, positions: Sequence[Any]) -> Any:
        return merged(positions)

    def restore(self, position: Any) -> None:
        self._splits.restore(position, self.context)

    @abstractmethod
    def _begin(self, split: Split, at: Any) -> None:
        """Starts the split, at a position in it unless `at` is None."""

    @abstractmethod
    def _read(self) -> tuple[int, bool]:
        """Reads a bundle and emits its results, at the latest in `flush`. Returns the number of
        rows read, and whether there may be more.
        """

    @abstractmethod
    def _at(self) -> Any:
        """Returns the position in the split."""

    @abstractmethod
    def _row_schema(self) -> StructType:
        """Returns the schema of the rows that are read."""

    @abstractmethod
    def _end(self) -> None:
        """Called when the split has been read completely."""
