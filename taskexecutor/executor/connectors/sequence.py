"""SequenceSource without Spark: numbers, made here in batches."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from firesteel._proto import tasks_pb2
from firesteel.connectors import SequenceSource
from firesteel.errors import FiresteelError
from firesteel.operator import SourceOperator
from firesteel.plan.specs import WatermarkSpec

BATCH_ROWS = 65_536


class SequenceReader(SourceOperator):
    """One batch per poll. The next split is asked for when the current one is begun."""

    poll_interval_s = None  # only the coordinator can bring more

    def __init__(self, source: SequenceSource, watermarks: WatermarkSpec | None = None) -> None:
        if watermarks is not None:
            raise FiresteelError(
                f"watermarks on {watermarks.column!r}: a SequenceSource has numbers, not timestamps; "
                "make a timestamp column with transform() and use a source with one"
            )
        self._schema = pa.schema([(source.column, pa.int64())])
        self._next = self._end = 0
        self._splits: list[tuple[int, int]] = []
        self._requested = False
        self._exhausted = False

    def handle_coordinator_event(self, event: Any) -> None:
        self._requested = False
        match event:
            case tasks_pb2.AssignSplit():
                split = json.loads(event.split_json)
                self._splits.append((split["start"], split["end"]))
            case tasks_pb2.NoMoreSplits():
                self._exhausted = True
            case _:
                raise FiresteelError(f"unexpected event {type(event).__name__} from the source's coordinator")

    def poll(self, max_wait_s: float) -> bool:
        if self._next >= self._end and self._splits:
            self._next, self._end = self._splits.pop(0)
        if not self._splits and not self._requested and not self._exhausted:
            self._requested = True
            self.context.send_to_coordinator(tasks_pb2.RequestSplit())
        if self._next >= self._end:
            self.waiting = not (self._exhausted and not self._splits)
            return self.waiting
        self.waiting = False
        stop = min(self._next + BATCH_ROWS, self._end)
        numbers = pa.array(np.arange(self._next, stop, dtype=np.int64))
        self._next = stop
        self.output.emit(pa.RecordBatch.from_arrays([numbers], schema=self._schema))
        return True
