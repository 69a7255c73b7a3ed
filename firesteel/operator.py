"""The operator interface: what runs in a task's chain.

The life of an operator. All calls are made on the task's own thread, never two at once:

    setup → initialize_state → open
    → (process_batch | process_watermark | timers | snapshot_state)*
    → end_input(i) for each input → finish
    → [snapshot_state → notify_checkpoint_complete] → close

A failure or a cancellation leads directly to close, from any state. Operators of a chain are opened
from the last to the first, and finished and closed from the first to the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa

from firesteel.common.operator_messages import HeldSplit
from firesteel.elements import StreamStatus, Watermark
from firesteel.errors import FiresteelError


class Output(Protocol):
    """Where an operator emits: the next operators of the chain, or the task's partitions."""

    def emit(self, batch: pa.RecordBatch) -> None:
        """Emits a batch. Blocks while every consumer is out of credit (back-pressure)."""

    def emit_side(self, tag: str, batch: pa.RecordBatch) -> None:
        """Emits a batch to the side output `tag`; dropped if nothing consumes it."""

    def emit_watermark(self, watermark: Watermark) -> None:
        """Emits a watermark, unless one as late has been emitted before."""

    def emit_status(self, status: StreamStatus) -> None:
        """Idle: consumers do not wait for this output's watermarks.

        The next batch or watermark makes it active again.
        """


class TimerService(Protocol):
    """Timers per key and namespace; a timer that is registered twice fires once.

    Those with a key are part of checkpoints. Those without one are not: the operator registers them
    again in `open`.
    """

    @property
    def current_watermark_us(self) -> int: ...

    def register_event_time(
        self, timestamp_us: int, key: Any = None, namespace: Any = None
    ) -> None: ...

    def delete_event_time(
        self, timestamp_us: int, key: Any = None, namespace: Any = None
    ) -> None: ...

    def register_processing_time(
        self, timestamp_ms: int, key: Any = None, namespace: Any = None
    ) -> None: ...

    def delete_processing_time(
        self, timestamp_ms: int, key: Any = None, namespace: Any = None
    ) -> None: ...


class Counter(Protocol):
    """A metric that counts."""

    @property
    def value(self) -> int:
        """The count so far."""

    def inc(self, count: int = 1) -> None: ...


class PlanMeter(Protocol):
    """Counts an operator's plans on Spark, and divides the time that it spends there.

    The spans are for use inside `RuntimeContext.time("spark")`: whatever is in neither of them
    counts as running a plan.
    """

    @property
    def planning(self) -> AbstractContextManager[None]:
        """Making a plan: the program's functions, analysis, optimisation, code generation."""

    @property
    def converting(self) -> AbstractContextManager[None]:
        """Bringing rows into Spark and out of it, as far as this process does that."""

    @property
    def reading(self) -> AbstractContextManager[None]:
        """Reading files in this process, by Arrow. What Spark reads itself counts as running."""

    def made(self) -> None:
        """Counts a plan that was made, kept or not."""

    def ran_kept(self) -> None:
        """Counts a bundle that was run by a kept plan."""

    def not_kept(self, reason: str) -> None:
        """Says why a plan is made for each bundle, for `firesteel show --full`."""

    def files_read_by(self, reader: str) -> None:
        """Says which reader reads a source's files, for `firesteel show --full`."""


class TaskCancelled(BaseException):
    """Unwinds a cancelled task. Not an Exception: a user's `except Exception` must not stop it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """Which task this is: one attempt of one subtask of a vertex."""

    job_id: str
    job_name: str
    vertex_id: str
    task_name: str  # vertex name
    subtask: int  # 0-based
    parallelism: int
    max_parallelism: int
    attempt: int  # 0-based
    attempt_id: str

    @property
    def task_name_with_subtask(self) -> str:
        return f"{self.task_name} ({self.subtask + 1}/{self.parallelism})#{self.attempt}"


class RuntimeContext(Protocol):
    """The environment of an operator."""

    @property
    def task(self) -> TaskInfo: ...

    @property
    def operator_id(self) -> str: ...

    @property
    def operator_name(self) -> str: ...

    @property
    def input_schemas(self) -> tuple[pa.Schema | None, ...]:
        """Schema of each input, known before data flows (None: its producer has none)."""

    @property
    def output_schema(self) -> pa.Schema | None: ...

    @property
    def timers(self) -> TimerService: ...

    @property
    def spark(self) -> Any:
        """The slot's SparkSession."""

    @property
    def config(self) -> dict[str, str]:
        """The job's configuration values."""

    @property
    def stopped_ms(self) -> float:
        """How long, in all, the task has read no input because the operator was ahead of its
        watermark alignment group.
        """

    @property
    def busy_s(self) -> float:
        """For how long, in all, the task has worked: neither waited for input or for an answer nor
        handed batches to its consumers.
        """

    def counter(self, name: str) -> Counter:
        """A counter that is exposed as flink_taskmanager_job_task_operator_<name>."""

    def time(self, kind: Literal["spark", "python"]) -> AbstractContextManager[None]:
        """Counts the time inside the `with` block as Spark's or Python's, except emitting."""

    def count_bundle(self, records: int) -> None:
        """Counts a bundle of records, for `firesteel show` and the metrics of bundle sizes."""

    @property
    def plan_meter(self) -> PlanMeter: ...

    def show_plan(self, plan: Callable[[], str]) -> None:
        """Shows a Spark plan in `firesteel show`; `plan` is called from time to time."""

    def send_to_coordinator(self, event: Any) -> None:
        """Sends an operator event to the coordinator in the JobMaster."""

    def request_mail(self, action: Callable[[], None]) -> None:
        """Runs `action` on the task's thread, between elements. Callable from any thread."""

    def yield_to_mail(self, timeout_s: float) -> None:
        """Runs the queued mails in the middle of an element, waiting at most `timeout_s` for one.

        For an operator that waits for an answer of its coordinator. Only on the task's thread.
        Raises TaskCancelled if the task is cancelled.
        """

    @property
    def checkpoints(self) -> bool:
        """Whether the job takes checkpoints."""

    @property
    def cancelled(self) -> bool:
        """Long work should check this and return early."""


class KeyedStateBackend(Protocol):
    """Keyed state by name: picklable values under (key, namespace), partitioned by key group."""

    def get(self, name: str, key: Any, namespace: Any = None) -> Any: ...

    def put(self, name: str, key: Any, value: Any, namespace: Any = None) -> None: ...

    def remove(self, name: str, key: Any, namespace: Any = None) -> None: ...


class KeyedRows(Protocol):
    """Keyed state in columns: rows, each of the key that is in its key columns.

    The operator holds them in whatever way it likes. At a snapshot it says how to make a table of
    them, which costs nothing then.
    """

    def restored(self) -> pa.Table | None:
        """The rows of this subtask's keys, those of a key in their order. Once: it keeps none.

        Raises FiresteelError if they have another meaning.
        """

    def keep(self, make: Callable[[], pa.Table | None]) -> None:
        """To be called in each `snapshot_state`. Another thread calls `make` some time later, so it
        must refer to nothing that changes.
        """


class ColumnMemory(Protocol):
    """Where a slot has its state in columns. With `state.backend.type: rocksdb`, and in a batch
    that does not set it, what is beyond its managed memory is in files without a name, which the
    operating system reads and writes.

    Raises FiresteelError if the disk is full.
    """

    @property
    def piece_bytes(self) -> int | None:
        """How large a part of the state should be at most that is in memory while it is changed;
        None: all of it may be.
        """

    def empty(self, count: int, dtype: Any) -> Any:
        """An array of NumPy with any content."""

    def full(self, count: int, value: Any, dtype: Any) -> Any: ...

    def grown(self, array: Any, count: int) -> Any:
        """An array that begins as this one and has room for `count` values, or more."""

    def kept(self, batch: pa.RecordBatch, size_bytes: int | None = None) -> pa.RecordBatch:
        """The batch, or an equal one that is in a file. `size_bytes`: if it is known."""


class OperatorState(Protocol):
    """The state of an operator: empty on a first run, the restored snapshot otherwise."""

    @property
    def restored(self) -> bool: ...

    @property
    def columns(self) -> ColumnMemory:
        """For state in columns that may be large."""

    @property
    def keyed(self) -> KeyedStateBackend: ...

    def keyed_rows(
        self,
        name: str,
        key_columns: Sequence[str],
        meaning: Mapping[str, str] | None = None,
        columns: Mapping[str, str] | None = None,
    ) -> KeyedRows:
        """`meaning`: what the rows stand for, by what one calls it, such as {"window": "1 hour"}.
        Rows of another meaning are not restored. `columns`: what they hold, of columns that may get
        other names, such as {"_p0_sum": "sum(d)"}; those that hold something new are not restored.
        """

    def list_state(self, name: str) -> list[Any]:
        """Picklable items of this subtask. The list itself: what it has at a snapshot is kept.

        A subtask restores its own items, or, with another parallelism, its share of all of them, in
        their order. Those of subtasks that had finished are gone.
        """

    def union_list_state(self, name: str) -> list[Any]:
        """As `list_state`, but every subtask restores the items of all: it takes those that it
        goes on for out of them, or all would be kept once per subtask.

        The subtasks of the operator finish all or none: while only some have, no checkpoint of the
        job is complete.
        """

    def broadcast_state(self, name: str) -> dict[Any, Any]:
        """What all subtasks have alike, as they have all processed the same. Every subtask restores
        that of any of them that had not finished.
        """


class StreamOperator:
    """Base of all operators; every method may be overridden.

    `inputs` is 1, or 2 for a two-input operator (0 for sources).
    """

    inputs: int = 1
    # Why the operator cannot take part in checkpoints; empty: it can, because all that it keeps is
    # in its state.
    not_checkpointed: str = ""
    # Whether rows are late, and time has come, after a restore as they were at the snapshot:
    # `context.timers.current_watermark_us` begins where it was.
    keeps_event_time: bool = False
    # Whether rows come from `finish` that have event times: what follows gets the end of event time
    # behind them, and no watermark before.
    emits_at_end: bool = False
    # Whether it registers again in `open` what timers it needs, also those with a key.
    keeps_timers: bool = False
    # This input is read to its end before the others are, whose producers wait meanwhile. No
    # checkpoint of the job is taken until then.
    reads_first: int | None = None
    context: RuntimeContext
    output: Output

    @property
    def full(self) -> bool:
        """Whether the operator holds as many rows as it may: the task then reads no input until a
        mail has run.
        """
        return False

    def setup(self, context: RuntimeContext, output: Output) -> None:
        self.context = context
        self.output = output

    def initialize_state(self, state: OperatorState) -> None:
        """Registers state; on recovery `state.restored` is true and the state is filled."""

    def open(self) -> None:
        """Acquires what processing needs. Operators downstream in the chain are open already."""

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        raise NotImplementedError

    def process_watermark(self, watermark: Watermark) -> None:
        """The event time of all inputs advances; timers up to it have fired."""
        self.output.emit_watermark(watermark)

    def process_status(self, status: StreamStatus) -> None:
        """All inputs have become idle, or one of them is active again."""
        self.output.emit_status(status)

    def on_event_time(self, timestamp_us: int, key: Any, namespace: Any) -> None:
        """An event-time timer fires."""

    def on_event_times(self, due: Iterator[tuple[int, Any, Any]]) -> None:
        """Event-time timers fire, in the order of their times, those included that firing ones
        register. Each is removed when it is taken from `due`: time, key and namespace.
        """
        for timestamp_us, key, namespace in due:
            self.on_event_time(timestamp_us, key, namespace)

    def on_processing_time(self, timestamp_ms: int, key: Any, namespace: Any) -> None:
        """A processing-time timer fires."""

    def flush(self) -> None:
        """Emits what is held back for efficiency (a bundle): before barriers, before event time
        advances, when input runs dry and before `finish`.
        """

    def prepare_barrier(self, checkpoint_id: int) -> None:
        """The barrier is about to be emitted, after `flush`: emits what belongs before it. Not
        called after `finish`.
        """

    def snapshot_state(self, checkpoint_id: int) -> None:
        """Updates the registered state; the runtime then snapshots it."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None: ...

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None: ...

    def handle_coordinator_event(self, event: Any) -> None:
        """An operator event from the coordinator in the JobMaster."""

    def end_input(self, input_index: int) -> None:
        """No more records will come on this input."""

    def finish(self) -> None:
        """Emits whatever is left. Nothing may be emitted afterwards."""

    def stop(self) -> None:
        """Called instead of `finish` when the job stops with a savepoint, which holds what is not
        emitted yet. Nothing may be emitted afterwards.
        """

    def close(self) -> None:
        """Releases everything; called exactly once on every path. Nothing may be emitted."""


class SourceOperator(StreamOperator):
    """The head of a source task: `poll` is called in a loop on the task's thread."""

    inputs = 0

    # Set by `poll` when there was nothing to read: the task then flushes the chain and sleeps until
    # a mail arrives (a coordinator event, a timer, `request_mail`), at most `poll_interval_s`,
    # before it polls again. None: until a mail arrives.
    waiting: bool = False
    poll_interval_s: float | None = 0.05

    def poll(self, max_wait_s: float) -> bool:
        """Emits the next bundle, waiting at most `max_wait_s` for it. False: the source is
        exhausted.

        A source that waits for its coordinator does not wait here, because the answer is a mail: it
        sets `waiting`.
        """
        raise NotImplementedError

    @property
    def splits_received(self) -> int:
        """How many splits the source's coordinator has given it."""
        return 0

    @property
    def splits_held(self) -> Sequence[HeldSplit]:
        """Those splits, in the order in which they came."""
        return ()

    @property
    def has_position(self) -> bool:
        """Whether the source can be continued where it was."""
        return type(self).position is not SourceOperator.position

    def position(self) -> Any:
        """What of its input has been emitted, as JSON; no rows. After `flush`.

        All that `poll` has emitted is before it, and all that it will emit behind it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no position")

    def restore(self, position: Any) -> None:
        """Called after `open` and before the first `poll`: continues at a `position()` of a source
        of the same operator. Raises FiresteelError if that is not possible. With more subtasks than
        before, some are not called.
        """
        raise NotImplementedError(f"{type(self).__name__} has no position")

    def merged(self, positions: Sequence[Any]) -> Any:
        """One position of which `restore` reads the rest of all of these, of as many subtasks: with
        fewer subtasks than before. Raises FiresteelError if there is none.
        """
        raise FiresteelError(
            f"{self.context.operator_name} cannot be restored with fewer subtasks than the"
            f" {len(positions)} that this one goes on for: set the parallelism that it had"
        )
