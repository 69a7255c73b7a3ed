"""PrintSink: writes rows to the slot's log, one line each, prefixed with the subtask's number.

Its rows are results: if the log cannot be written, the task fails, unlike for a log message.
"""

from __future__ import annotations

import pyarrow as pa

from firesteel.common.output import write_results
from firesteel.common.time_zones import in_zone
from firesteel.connectors import PrintSink, SinkWriter
from firesteel.operator import RuntimeContext
from taskexecutor.executor.columnar.jvm.session import session_zone
from taskexecutor.executor.connectors.writer_sink import WriterSink


class PrintSinkRuntime(WriterSink[PrintSink]):
    def create_writer(self, context: RuntimeContext) -> SinkWriter:
        return PrintWriter(self.sink, context)


class PrintWriter(SinkWriter):
    def __init__(self, sink: PrintSink, context: RuntimeContext) -> None:
        task = context.task
        self._zone = session_zone(context)
        place = f"{task.subtask + 1}> " if task.parallelism > 1 else ""
        self._prefix = f"{sink.prefix}{':' if place else '> '}{place}" if sink.prefix else place

    def write(self, batch: pa.RecordBatch) -> None:
        rows = in_zone(batch, self._zone).to_pylist()
        write_results("".join(f"{self._prefix}{row}\n" for row in rows))

    def prepare(self) -> tuple[()]:
        return ()
