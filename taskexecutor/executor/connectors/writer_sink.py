"""Sinks with a SinkWriter: those of a program, and suitable built-in ones."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from firesteel.connectors.sink import Committable, Committer, SinkWriter
from firesteel.errors import FiresteelError
from firesteel.operator import OperatorState, RuntimeContext, StreamOperator
from taskexecutor.executor.connectors.runtime import AnySink, SinkRuntime


class WriterSink(SinkRuntime[AnySink]):
    """A built-in sink overrides the creation of its writer and committer, which belong to the
    slot.
    """

    def analyze(self, schema: pa.Schema | None) -> pa.Schema | None:
        self.sink.check(schema)
        return None

    def operator(self) -> StreamOperator:
        return SinkWriting(self)

    def create_writer(self, context: RuntimeContext) -> SinkWriter:
        return self.sink.create_writer(context)

    def create_committer(self, context: RuntimeContext) -> Committer | None:
        return self.sink.create_committer(context)


class SinkWriting(StreamOperator):
    """Writes with a SinkWriter, and commits what it prepares: at the end of the input, at the
    sink's interval, and when the writer requests it.

    With checkpoints, prepared committables belong to the next checkpoint, and are committed when it
    is complete, by this attempt or, after a failure, by the attempt that restores it: whatever a
    complete checkpoint contains is committed (invariant 23). Committables prepared for an aborted
    checkpoint are committed with the next one.
    """

    def __init__(self, runtime: WriterSink[Any]) -> None:
        self._runtime = runtime
        self._interval_s: float | None = runtime.sink.commit_interval_s
        self._deadline_ms: int | None = None  # for the rows written since the last commit
        self._prepared: Sequence[Committable] = ()  # not assigned to a checkpoint yet
        # List state: uncommitted committables of checkpoints, as (checkpoint, committables).
        self._in_checkpoints: list[tuple[int, Sequence[Committable]]] = []
        self._recovered = False
        self._writer: SinkWriter | None = None
        self._committer: Committer | None = None
        self._restored = False

    def initialize_state(self, state: OperatorState) -> None:
        self._restored = state.restored
        self._in_checkpoints = state.list_state("committables")

    def open(self) -> None:
        with self.context.time("python"):
            self._committer = self._runtime.create_committer(self.context)
            if self._committer is not None and not self._restored:
                self._committer.start_over()
            self._commit_checkpoints()
            self._writer = self._runtime.create_writer(self.context)
            self._writer.open()

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        assert self._writer is not None
        timed = self._interval_s is not None and not self.context.checkpoints
        if timed and self._deadline_ms is None:
            assert self._interval_s is not None
            self._deadline_ms = time.time_ns() // 1_000_000 + max(1, round(self._interval_s * 1000))
            self.context.timers.register_processing_time(self._deadline_ms)
        with self.context.time("python"):
            self._writer.write(batch)
        if self._writer.commit_now:
            self._commit()

    def on_processing_time(self, timestamp_ms: int, key: Any, namespace: Any) -> None:
        if timestamp_ms == self._deadline_ms:  # otherwise it was committed in the meantime
            self._commit()

    def flush(self) -> None:
        assert self._writer is not None
        with self.context.time("python"):
            self._writer.flush()

    def snapshot_state(self, checkpoint_id: int) -> None:
        self._prepare()
        if self._prepared:
            self._in_checkpoints.append((checkpoint_id, tuple(self._prepared)))
        self._prepared = ()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        with self.context.time("python"):
            self._commit_checkpoints(checkpoint_id)
            if self._committer is not None and not self._recovered:
                self._recovered = True
                self._committer.recovered()

    def finish(self) -> None:
        self._commit()

    def _commit(self) -> None:
        """Commits, or with checkpoints waits for the next one to complete."""
        self._deadline_ms = None
        self._prepare()
        if self.context.checkpoints:
            return
        with self.context.time("python"):
            self._commit_prepared()
        self._prepared = ()

    def _prepare(self) -> None:
        assert self._writer is not None
        with self.context.time("python"):
            self._prepared = (*self._prepared, *self._writer.prepare())

    def _commit_prepared(self) -> None:
        self._make_visible(self._prepared)

    def _make_visible(self, committables: Sequence[Committable]) -> None:
        if self._committer is not None:
            self._committer.commit(committables)
        elif committables:
            raise FiresteelError(
                f"{self.context.operator_name}: its writer prepared {len(committables)} "
                "committables, and create_committer() returned None"
            )

    def _commit_checkpoints(self, up_to: int | None = None) -> None:
        """Commits those of the checkpoints up to this one; None: of all checkpoints."""
        due = [c for n, found in self._in_checkpoints if up_to is None or n <= up_to for c in found]
        if due:
            self._make_visible(due)
        self._in_checkpoints[:] = [
            (n, found) for n, found in self._in_checkpoints if up_to is not None and n > up_to
        ]

    def close(self) -> None:
        writer, self._writer = self._writer, None
        committer, self._committer = self._committer, None
        with contextlib.ExitStack() as stack:  # all of them, even if some raise
            if committer is not None:
                stack.callback(committer.close)
                if self._prepared:
                    stack.callback(committer.abort, self._prepared)
            if writer is not None:
                stack.callback(writer.close)
