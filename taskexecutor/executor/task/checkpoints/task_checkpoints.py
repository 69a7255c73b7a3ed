"""A task's checkpoints: forwards the barrier, then takes, writes and acknowledges the snapshot.

The task's thread flushes what is held back, forwards the barrier and takes the snapshot, at a cost
that does not depend on the state's size. A separate thread then writes the snapshot, unless it only
holds operator state; a snapshot that cannot be written is declined and leaves no file. The snapshot
of a checkpoint that overtakes data is written once the in-flight batches are known, which is when
the last barrier has arrived.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from firesteel.common.checkpoints.messages import (
    CheckpointAcknowledged,
    CheckpointDeclined,
    DataEnded,
    Snapshot,
)
from firesteel.common.checkpoints.state import InFlight, OperatorSnapshot, inline_bytes
from firesteel.common.checkpoints.storage import StorageError
from firesteel.common.failpoints import Failpoint, reached
from firesteel.common.ids import AttemptId, OperatorId
from firesteel.common.job_graph import JobEdge
from firesteel.common.logs import get_logger
from firesteel.elements import CheckpointBarrier
from firesteel.text import text_of
from taskexecutor.executor.state import OperatorStateSnapshot
from taskexecutor.executor.state.files import write_snapshot
from taskexecutor.executor.state.in_flight import BatchesByProducer, write_in_flight
from taskexecutor.executor.state.keyed import SnapshotTarget
from taskexecutor.executor.task.chain import OperatorChain
from taskexecutor.executor.task.interfaces import CheckpointServices
from taskexecutor.executor.task.metrics import CheckpointTimes
from taskexecutor.executor.timing.clock import wall_clock_ms

_log = get_logger("task")


class InputInFlight(NamedTuple):
    """The data that a checkpoint has overtaken at one gate."""

    operator_id: OperatorId  # the operator whose input it is
    edge: JobEdge
    batches: BatchesByProducer


class _Alignment(NamedTuple):
    checkpoint_id: int
    since_s: float  # by `time.perf_counter`
    began_ms: int  # the same moment, by the wall clock


class _ToWrite(NamedTuple):
    checkpoint_id: int
    operators: list[tuple[OperatorId, OperatorStateSnapshot]]
    operators_finished: bool
    start_delay_ms: float
    alignment_ms: float
    sync_ms: float
    records_read: int | None
    savepoint: bool
    base: int | None
    in_flight: Sequence[InputInFlight] = ()

    @property
    def small(self) -> bool:
        """Returns whether there is no file to write."""
        return not self.in_flight and all(snapshot.small for _, snapshot in self.operators)

    def release(self) -> None:
        """Releases the snapshot after it is written or abandoned."""
        for _, snapshot in self.operators:
            snapshot.keyed.release()


class _Abandoned(Exception):
    """Raised if the task ends while a checkpoint is written."""


class TaskCheckpoints:
    """Used on the task's thread; `close` ends the writing thread. `records_read` returns the rows
    that the task's source has read; None if it has none.
    """

    def __init__(
        self,
        attempt_id: AttemptId,
        chain: OperatorChain,
        services: CheckpointServices,
        times: CheckpointTimes,
        *,
        parallelism: int = 1,
        records_read: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._records_read = records_read
        self._attempt_id = attempt_id
        self._chain = chain
        self._services = services
        self._times = times
        self._inline_bytes = inline_bytes(services.inline_bytes, parallelism)
        self._finished = False  # finish() was called on all operators
        self._final: int | None = None  # the first checkpoint taken after that
        # whether a complete checkpoint includes the results of finish()
        self.final_complete = False
        self._aligning = _Alignment(0, 0.0, 0)  # of the newest checkpoint with a barrier
        self._overtaking: _ToWrite | None = None  # waits for the in-flight data
        self.open: set[int] = set()  # checkpoints that started here and are not known to have ended
        self._writing: queue.SimpleQueue[_ToWrite | None] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None
        self._closed = threading.Event()

    def barrier_came(self, checkpoint_id: int) -> None:
        """Starts the alignment at the first barrier."""
        self.open.add(checkpoint_id)
        if checkpoint_id > self._aligning.checkpoint_id:
            self._aligning = _Alignment(checkpoint_id, time.perf_counter(), wall_clock_ms())
            self._times.aligning_since_s = self._aligning.since_s

    def take(self, barrier: CheckpointBarrier) -> None:
        """Takes the snapshot: everything before the barrier is processed, and nothing after it."""
        self._put(self._snapshot(barrier))

    def overtake(self, barrier: CheckpointBarrier) -> None:
        """Takes the snapshot while data before the barrier is waiting; `overtaken` follows."""
        self._drop_overtaking()
        self._overtaking = self._snapshot(barrier)

    @property
    def overtaking(self) -> bool:
        """Returns whether `overtaken` is to be called."""
        return self._overtaking is not None

    def overtaken(self, in_flight: Sequence[InputInFlight]) -> None:
        """Adds the data before the barriers that was not processed when the snapshot was taken."""
        work, self._overtaking = self._overtaking, None
        assert work is not None
        self._put(work._replace(in_flight=in_flight))

    def _snapshot(self, barrier: CheckpointBarrier) -> _ToWrite:
        reached(Failpoint.SNAPSHOT_BEFORE)
        started = time.perf_counter()
        self.open.add(barrier.checkpoint_id)
        aligned = self._aligning
        if aligned.checkpoint_id != barrier.checkpoint_id:  # triggered here
            aligned = _Alignment(barrier.checkpoint_id, started, wall_clock_ms())
        times = self._times
        times.aligning_since_s = None
        times.alignment_ms = (started - aligned.since_s) * 1000
        # Clocks of two machines may differ.
        times.start_delay_ms = float(max(0, aligned.began_ms - barrier.timestamp_ms))
        if not self._finished:
            self._chain.prepare_barrier(barrier.checkpoint_id)
        records_read = self._records_read()
        self._chain.emit_barrier(barrier)
        if self._finished and self._final is None:
            self._final = barrier.checkpoint_id
        operators = self._chain.snapshot(barrier.checkpoint_id)
        sync_ms = (time.perf_counter() - started) * 1000
        reached(Failpoint.SNAPSHOT_AFTER)
        return _ToWrite(
            barrier.checkpoint_id,
            operators,
            self._finished,
            times.start_delay_ms,
            times.alignment_ms,
            sync_ms,
            records_read,
            barrier.savepoint,
            barrier.base,
        )

    def _put(self, work: _ToWrite) -> None:
        if work.small:  # waking the other thread would take longer
            self._write_and_answer(work)
            return
        if self._writer is None:
            self._writer = threading.Thread(
                target=self._write_all, name=f"checkpoints {self._attempt_id[:8]}", daemon=True
            )
            self._writer.start()
        self._writing.put(work)

    def _drop_overtaking(self) -> None:
        work, self._overtaking = self._overtaking, None
        if work is not None:
            work.release()

    def operators_finished(self) -> None:
        """From now on, a checkpoint includes the results of finish() (spec 001). Once all tasks
        report this, the JobMaster need not wait an interval for the next checkpoint.
        """
        self._finished = True
        self.say_if_data_ended()

    @property
    def data_ended(self) -> bool:
        """Returns whether finish() was called on all operators."""
        return self._finished

    def say_if_data_ended(self) -> None:
        """Reports that the data has ended; also again, since the message may be lost."""
        if self._finished:
            self._services.answer(DataEnded(attempt_id=self._attempt_id))

    def ended(self, checkpoint_id: int, *, completed: bool, stops: bool = False) -> None:
        """Handles the JobMaster's notification. Any checkpoint that started after finish()
        suffices, whichever notification comes first (spec 001). If `stops`, the job ends with this
        checkpoint, and finish() is not called.
        """
        if self._overtaking is not None and self._overtaking.checkpoint_id <= checkpoint_id:
            self._drop_overtaking()
        if self._aligning.checkpoint_id <= checkpoint_id:
            self._times.aligning_since_s = None  # it was aborted, or has long ended
        self.open = {other for other in self.open if other > checkpoint_id}
        if completed:
            reached(Failpoint.NOTIFICATION_BEFORE)
        self._chain.notify_checkpoint(checkpoint_id, completed=completed)
        if completed:
            reached(Failpoint.NOTIFICATION_AFTER)
        is_final = stops or (self._final is not None and checkpoint_id >= self._final)
        if completed and is_final:
            self.final_complete = True

    def close(self) -> None:
        """Abandons unwritten snapshots. Returns when the thread has ended."""
        self._closed.set()
        self._drop_overtaking()
        if self._writer is not None:
            self._writing.put(None)
            self._writer.join()

    # -- the writing thread

    def _write_all(self) -> None:
        while (work := self._writing.get()) is not None:
            self._write_and_answer(work)

    def _write_and_answer(self, work: _ToWrite) -> None:
        """Runs in the task's thread if there is no file to write."""
        try:
            answer = self._write(work)
            reached(Failpoint.UPLOAD_AFTER)
            if answer is not None:
                self._services.answer(answer)
        except Exception as error:
            _log.exception("a checkpoint could not be acknowledged", checkpoint=work.checkpoint_id)
            self._services.answer(self._declined(work, error))
        reached(Failpoint.ACKNOWLEDGED)

    def _write(self, work: _ToWrite) -> CheckpointAcknowledged | CheckpointDeclined | None:
        """Writes the snapshot. Returns None if the task has ended, which the JobMaster learns from
        its state.
        """
        started = time.perf_counter()
        storage = self._services.storage
        paths: list[str] = []
        try:
            write = functools.partial(self._write_operator, work, paths)
            written = (
                [write(of) for of in work.operators]
                if work.small
                else storage.each(write, work.operators)
            )
            in_flight = storage.each(
                functools.partial(self._write_in_flight, work, paths), range(len(work.in_flight))
            )
            for part, handle in zip(work.in_flight, in_flight, strict=True):
                if handle is not None:
                    _add(written, part.operator_id, handle)
        except _Abandoned:
            self._delete(paths)
            return None
        except BaseException as error:  # pickling a value may run user code
            self._delete(paths)
            return self._declined(work, error)
        finally:
            work.release()
        snapshot = Snapshot(
            operators=tuple(written),
            operators_finished=work.operators_finished,
            start_delay_ms=work.start_delay_ms,
            alignment_ms=work.alignment_ms,
            sync_ms=work.sync_ms,
            async_ms=(time.perf_counter() - started) * 1000,
            records_read=work.records_read,
        )
        self._times.size_bytes = snapshot.size_bytes
        return CheckpointAcknowledged(
            attempt_id=self._attempt_id, checkpoint_id=work.checkpoint_id, snapshot=snapshot
        )

    def _declined(self, work: _ToWrite, error: BaseException) -> CheckpointDeclined:
        return CheckpointDeclined(
            attempt_id=self._attempt_id,
            checkpoint_id=work.checkpoint_id,
            cause=text_of(error) or type(error).__name__,
        )

    def _write_operator(
        self, work: _ToWrite, paths: list[str], of: tuple[OperatorId, OperatorStateSnapshot]
    ) -> OperatorSnapshot:
        """Writes one operator's snapshot. Adds to `paths` every file that may exist from now on.
        Runs concurrently for several operators.
        """
        if self._closed.is_set():
            raise _Abandoned
        operator_id, snapshot = of
        storage = self._services.storage
        name = f"{self._attempt_id}-{operator_id[:8]}"
        path = f"chk-{work.checkpoint_id}/{name}"
        paths.append(path)
        # A savepoint can be restored with another backend.
        target = SnapshotTarget(
            storage=storage,
            checkpoint_id=work.checkpoint_id,
            name=name,
            base=work.base,
            written=paths,
        )
        return write_snapshot(
            storage,
            path,
            operator_id,
            snapshot,
            None if work.savepoint else target,
            inline_bytes=self._inline_bytes,
        )

    def _write_in_flight(self, work: _ToWrite, paths: list[str], number: int) -> InFlight | None:
        """Writes in-flight data. Adds to `paths` like `_write_operator`."""
        part = work.in_flight[number]
        path = f"chk-{work.checkpoint_id}/{self._attempt_id}-in-{number}"
        paths.append(path)
        return write_in_flight(self._services.storage, path, part.edge, part.batches)

    def _delete(self, paths: list[str]) -> None:
        try:
            self._services.storage.delete(paths)
        except StorageError as error:
            _log.warning("files of a checkpoint could not be deleted", cause=str(error))


def _add(written: list[OperatorSnapshot], operator_id: OperatorId, handle: InFlight) -> None:
    """Adds the in-flight data to the snapshot of the operator whose input it is."""
    index = next(n for n, part in enumerate(written) if part.operator_id == operator_id)
    part = written[index]
    written[index] = replace(part, in_flight=(*part.in_flight, handle))
