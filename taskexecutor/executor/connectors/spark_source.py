"""A source that Spark reads, with the Spark operators after it: splits are read inside the plan,
out of Python's sight.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from firesteel.connectors.source import Split
from firesteel.elements import StreamStatus
from firesteel.operator import SourceOperator
from firesteel.plan.specs import Spec
from taskexecutor.executor.connectors.splits import Splits
from taskexecutor.executor.spark.stage import SparkStage


class SparkSourceStage(SparkStage, SourceOperator):
    """Each split is one bundle, read as a stream."""

    inputs = 0
    poll_interval_s = None  # only the coordinator can bring more
    idle_between_splits = False  # other sources need not wait for it while it has no split

    def __init__(self, specs: Sequence[Spec], output_schema: pa.Schema | None) -> None:
        super().__init__(specs, output_schema)
        self._splits = Splits()

    def handle_coordinator_event(self, event: Any) -> None:
        self._splits.handle(event, self.context)

    def poll(self, max_wait_s: float) -> bool:
        self.waiting = False
        self._request()
        if not self._splits.waiting:
            self.waiting = not self._splits.exhausted
            if self.waiting and self.idle_between_splits:
                self.output.emit_status(StreamStatus(True))
            return self.waiting
        split = self._splits.waiting.popleft().split
        # Now, not with its first row: rows of other splits must not overtake it.
        self.output.emit_status(StreamStatus(False))
        self._request()  # the next one is on its way while this one is read
        rows = self._read(split)
        self.context.counter("numRecordsIn").inc(rows)
        self.context.count_bundle(rows)
        return True

    def _request(self) -> None:
        if not self._splits.waiting:
            self._splits.ask(self.context)

    @abstractmethod
    def _read(self, split: Split) -> int:
        """Reads the split and emits what the plan makes of it; returns how many rows it had."""
