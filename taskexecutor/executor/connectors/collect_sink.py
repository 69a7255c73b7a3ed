"""CollectSink: sends rows to the client, through the coordinator in the JobMaster, which spools and
acknowledges them.

With checkpoints, the chunks between two checkpoints are a group, which clients do not see before
the checkpoint that contains the group's name is complete. Then the sink requests that the group be
shown; after a failure, the attempt that restores the checkpoint does. Repeating the request has no
effect.

A chunk costs three processes some milliseconds. Therefore single rows are gathered for
`INTERVAL_MS` after the last chunk; the first rows after a pause are sent immediately.

At most `WINDOW` chunks are in flight. They are kept until they are acknowledged, because they may
have to be sent again. If the window is full, the operator waits for an acknowledgement and runs the
task's mails in the meantime, so that a cancellation reaches it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from firesteel.common.failpoints import Failpoint, reached
from firesteel.common.operator_messages import ChunkAcknowledged, ChunkCollected, Resend
from firesteel.common.rpc.errors import MAX_PAYLOAD_BYTES
from firesteel.common.units import MIB
from firesteel.connectors import CollectSink
from firesteel.errors import FiresteelError
from firesteel.operator import OperatorState, StreamOperator
from taskexecutor.executor.connectors.runtime import SinkRuntime

WINDOW = 4
CHUNK_BYTES = 2**20  # small batches are sent together up to this size
INTERVAL_MS = 100  # between smaller chunks
MAX_ROW_BYTES = MAX_PAYLOAD_BYTES - MIB  # leaves room for the schema and the rest of the message
_WAIT_S = 1.0


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cuts a batch into chunks. A chunk that is larger has a single row."""
    rows = max(1, batch.num_rows * CHUNK_BYTES // max(1, batch.nbytes))
    if rows >= batch.num_rows:
        yield batch
        return
    for offset in range(0, batch.num_rows, rows):
        yield from _parts(batch.slice(offset, rows))  # some rows may be much larger than others


def _too_large(row: pa.RecordBatch) -> str:
    largest = max(range(row.num_columns), key=lambda index: int(row.column(index).nbytes))
    return (
        f"a row is too large to be collected: it has {row.nbytes:,} bytes, of which"
        f" {row.column(largest).nbytes:,} are in column {row.schema.names[largest]!r}, and the"
        f" limit is {MAX_ROW_BYTES:,}; write such rows with a sink, for example a FileSink"
    )


class CollectSinkRuntime(SinkRuntime[CollectSink]):
    def operator(self) -> StreamOperator:
        return Collecting()


class _Group(NamedTuple):
    """The chunks that one checkpoint shows."""

    checkpoint_id: int
    job_id: str
    name: str


class Collecting(StreamOperator):
    def __init__(self, interval_ms: int = INTERVAL_MS) -> None:
        self._interval_ms = interval_ms
        self._sent_ms = -interval_ms  # when the last chunk was sent
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._next_sequence = 0
        self._unacknowledged: deque[ChunkCollected] = deque()
        self._group = 0  # the number of this attempt's next group
        self._group_begun = False
        self._hidden: list[_Group] = []  # list state: groups in checkpoints that are not shown yet

    def initialize_state(self, state: OperatorState) -> None:
        self._hidden = state.list_state("groups")

    def open(self) -> None:
        # When a job restores another job's savepoint, that job's groups are among its own rows.
        self._hidden[:] = [g for g in self._hidden if g.job_id == self.context.task.job_id]
        self._show(None)

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        if self._gathered and batch.schema != self._gathered[0].schema:
            self._send_gathered()
        for part in _parts(batch):
            if self._gathered_bytes + part.nbytes > CHUNK_BYTES:
                self._send_gathered()
            self._gathered.append(part)
            self._gathered_bytes += part.nbytes

    def flush(self) -> None:
        if not self._gathered:
            return
        now_ms = time.time_ns() // 1_000_000
        due_ms = self._sent_ms + self._interval_ms
        if self._sent_ms <= now_ms < due_ms:  # otherwise it is due, or the clock was set back
            self.context.timers.register_processing_time(due_ms)
        else:
            self._send_gathered()

    def on_processing_time(self, timestamp_ms: int, key: Any, namespace: Any) -> None:
        self._send_gathered()

    def _send_gathered(self) -> None:
        if not self._gathered:
            return
        for batch in self._gathered:
            if batch.nbytes > MAX_ROW_BYTES:
                raise FiresteelError(_too_large(batch))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._gathered[0].schema) as writer:
            for batch in self._gathered:
                writer.write_batch(batch)
        self._gathered, self._gathered_bytes = [], 0
        self._wait_until(WINDOW - 1)
        group = ""
        if self.context.checkpoints:
            group, self._group_begun = self._group_name, True
        self._send(sink.getvalue().to_pybytes(), group)
        self._sent_ms = time.time_ns() // 1_000_000

    def snapshot_state(self, checkpoint_id: int) -> None:
        """Waits until the coordinator has stored the rows before the checkpoint."""
        self._send_gathered()
        self._wait_until(0)
        if self._group_begun:
            group = _Group(checkpoint_id, self.context.task.job_id, self._group_name)
            self._hidden.append(group)
            self._group += 1
            self._group_begun = False

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._show(checkpoint_id)

    def handle_coordinator_event(self, event: Any) -> None:
        match event:
            case ChunkAcknowledged():
                if event.error:
                    raise FiresteelError(f"the collected rows could not be stored: {event.error}")
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
            # A result without rows still has columns.
            self._gathered.append(pa.RecordBatch.from_pylist([], schema=schema))
        self._send_gathered()
        self._wait_until(0)  # the job must not finish before its rows are safe

    def close(self) -> None:
        self._gathered = []

    @property
    def _group_name(self) -> str:
        return f"{self.context.task.attempt_id}-{self._group}"

    def _show(self, up_to: int | None) -> None:
        """Shows the groups of the checkpoints up to this one, or all groups. They are remembered
        until the request is acknowledged.
        """
        due = [g for g in self._hidden if up_to is None or g.checkpoint_id <= up_to]
        for group in due:
            self._wait_until(WINDOW - 1)
            self._send(b"", group.name)
            reached(Failpoint.COLLECTED_AFTER)
        self._wait_until(0)
        self._hidden[:] = [g for g in self._hidden if g not in due]

    def _send(self, ipc_stream: bytes, group: str) -> None:
        chunk = ChunkCollected(sequence=self._next_sequence, ipc_stream=ipc_stream, group=group)
        self._unacknowledged.append(chunk)
        self._next_sequence += 1
        self.context.send_to_coordinator(chunk)

    def _wait_until(self, unacknowledged: int) -> None:
        while len(self._unacknowledged) > unacknowledged:
            self.context.yield_to_mail(_WAIT_S)
