"""CollectSink: rows to the client, by way of the coordinator in the JobMaster, which spools and
acknowledges them.

At most `WINDOW` chunks are under way, and kept here until they are acknowledged: they may have to
be sent again. With the window full the operator waits for an acknowledgement, running the task's
mails while it does, so a cancellation reaches it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import pyarrow as pa

from firesteel.common.operator_messages import ChunkAcknowledged, ChunkCollected, Resend
from firesteel.connectors import CollectSink
from firesteel.errors import FiresteelError
from firesteel.operator import StreamOperator
from taskexecutor.executor.connectors.runtime import SinkRuntime

WINDOW = 4
CHUNK_BYTES = 2**20  # small batches are sent together up to this
_WAIT_S = 1.0


class CollectSinkRuntime(SinkRuntime[CollectSink]):
    def operator(self) -> StreamOperator:
        return Collecting()


class Collecting(StreamOperator):
    not_checkpointed = "the rows that it has sent are not part of checkpoints"

    def __init__(self) -> None:
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._next_sequence = 0
        self._unacknowledged: deque[ChunkCollected] = deque()

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        if self._gathered and batch.schema != self._gathered[0].schema:
            self.flush()
        # A batch larger than a message is cut.
        rows = max(1, batch.num_rows * CHUNK_BYTES // max(1, batch.nbytes))
        for offset in range(0, batch.num_rows, rows):
            part = batch.slice(offset, rows)
            if self._gathered_bytes + part.nbytes > CHUNK_BYTES:
                self.flush()
            self._gathered.append(part)
            self._gathered_bytes += part.nbytes

    def flush(self) -> None:
        if not self._gathered:
            return
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._gathered[0].schema) as writer:
            for batch in self._gathered:
                writer.write_batch(batch)
        self._gathered, self._gathered_bytes = [], 0
        self._wait_until(WINDOW - 1)
        chunk = ChunkCollected(
            sequence=self._next_sequence, ipc_stream=sink.getvalue().to_pybytes()
        )
        self._unacknowledged.append(chunk)
        self._next_sequence += 1
        self.context.send_to_coordinator(chunk)

    def handle_coordinator_event(self, event: Any) -> None:
        match event:
            case ChunkAcknowledged():
                if event.error:
                    raise FiresteelError(f"the collected rows could not be kept: {event.error}")
                while self._unacknowledged and self._unacknowledged[0].sequence <= event.sequence:
                    self._unacknowledged.popleft()
            case Resend():
                for chunk in tuple(self._unacknowledged):
                    self.context.send_to_coordinator(chunk)
            case _:
                raise FiresteelError(
                    f"unexpected event {type(event).__name__} from the collect coordinator"
                )

    def finish(self) -> None:
        schema = self.context.input_schemas[0]
        if (
            schema is not None
            and self._next_sequence == 0
            and not self._gathered
            and self.context.task.subtask == 0
        ):
            # A result without rows has columns, too.
            self._gathered.append(pa.RecordBatch.from_pylist([], schema=schema))
        self.flush()
        self._wait_until(0)  # the job is not finished before its rows are safe

    def close(self) -> None:
        self._gathered = []

    def _wait_until(self, unacknowledged: int) -> None:
        while len(self._unacknowledged) > unacknowledged:
            self.context.yield_to_mail(_WAIT_S)
