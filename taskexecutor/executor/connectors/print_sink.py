"""PrintSink: rows to the slot's log, one line each, with the subtask's number in front."""

from __future__ import annotations

import sys
from typing import TextIO

import pyarrow as pa

from firesteel.connectors import PrintSink
from firesteel.operator import StreamOperator


class PrintWriter(StreamOperator):
    def __init__(self, sink: PrintSink, stream: TextIO | None = None) -> None:
        self._sink = sink
        self._stream = stream

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        task = self.context.task
        place = f"{task.subtask + 1}> " if task.parallelism > 1 else ""
        prefix = (
            f"{self._sink.prefix}:{place}"
            if self._sink.prefix and place
            else f"{self._sink.prefix}> "
            if self._sink.prefix
            else place
        )
        stream = self._stream or sys.stdout
        stream.writelines(f"{prefix}{row}\n" for row in batch.to_pylist())
        stream.flush()
