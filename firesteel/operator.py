"""The operator interface: the elements of a task's chain.

Life cycle of an operator. All calls are made on the task's thread, never concurrently:"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa

from firesteel.common.operator_messages import HeldSplit
from firesteel.common.task_metrics import TopicProgress
from firesteel.elements import StreamStatus, Watermark
from firesteel.errors import FiresteelError


class Output(Protocol):
    """Where an operator emits: the next operators of the chain, or the task's partitions."""

    def emit(self, batch: pa.RecordBatch) -> None:
        """Emits a batch. Blocks while every consumer is out of credit (back-pressure)."""

    def emit_side(self, tag: str, batch: pa.RecordBatch) -> None:
        """Emits a batch to the side output `tag`; drops it if the side output has no consumer."""

    def emit_watermark(self, watermark: Watermark) -> None:
        """Emits a watermark, unless an equal or later one has been emitted."""

    def emit_status(self, status: StreamStatus) -> None:
        """Emits the status. While it is idle, consumers do not wait for this output's watermarks.

        The next batch or watermark makes it active again.
        """


class TimerService(Protocol):
    """Timers per key and namespace; a timer that is registered twice fires once.

    Timers with a key are part of checkpoints. Timers without a key are not: the operator registers
    them again in `open`.
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
    """Counts an operator's plans on Spark, and divides the time spent there.

    Use the spans inside `RuntimeContext.time("spark")`: time outside of them counts as running a
    plan.
    """

    @property
    def planning(self) -> AbstractContextManager[None]:
        """Measures making a plan: the program's functions, analysis, optimisation, code
        generation.
        """

    @property
    def converting(self) -> AbstractContextManager[None]:
        """Measures moving rows into and out of Spark, as far as this process does it."""

    @property
    def reading(self) -> AbstractContextManager[None]:
        """Measures reading files in this process, by Arrow. Reading by Spark counts as running."""

    def made(self) -> None:
        """Counts a plan that was made, whether it is cached or not."""

    def ran_cached(self) -> None:
        """Counts a bundle that ran a cached plan."""

    def not_cached(self, reason: str) -> None:
        """Records why a plan is made for each bundle, for `firesteel show --full`."""

    def files_read_by(self, reader: str, why: str = "") -> None:
        """Records the reader of a source's files, for `firesteel show --full`. `why` is the reason
        if there is a faster reader.
        """

    def computed_by(self, way: str) -> None:
        """Records how the results are computed, for `firesteel show --full`."""


class TaskCancelled(BaseException):
    """Unwinds a cancelled task. It is not an Exception, so that `except Exception` in user code
    does not catch it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """Identifies a task: one attempt of one subtask of a vertex."""

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
        """The schema of each input, known before data flows (None: its producer has none)."""

    @property
    def output_schema(self) -> pa.Schema | None: ...

    @property
    def chained(self) -> bool:
        """Whether another operator of the task processes the results before `emit` returns."""

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
        """The total time for which the task has read no input because the operator was ahead of its
        watermark alignment group.
        """

    @property
    def busy_s(self) -> float:
        """The total time for which the task has worked, without waiting for input or an answer and
        without passing batches to its consumers.
        """

    def counter(self, name: str) -> Counter:
        """Returns a counter, exposed as flink_taskmanager_job_task_operator_<name>."""

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Exposes what `read` returns as flink_taskmanager_job_task_operator_<name>. Another thread
        calls it every second. The last gauge of a name counts.
        """

    def pending_records(self, read: Callable[[], int]) -> None:
        """Reports the backlog of a source: the records that its subtask could read, but has not
        read. The autoscaler provides capacity for them, and the metric pendingRecords shows them.
        Another thread calls `read` every second.
        """

    def show_topics(self, read: Callable[[], TopicProgress]) -> None:
        """Shows the progress of an operator that reads or writes topics: in `firesteel show`, on
        the dashboard and as metrics. Another thread calls `read` every second.
        """

    def time(self, kind: Literal["spark", "python"]) -> AbstractContextManager[None]:
        """Counts the time inside the `with` block as Spark's or Python's, excluding emission."""

    def count_bundle(self, records: int) -> None:
        """Counts a bundle of records, for `firesteel show` and the metrics of bundle sizes."""

    @property
    def plan_meter(self) -> PlanMeter: ...

    def show_plan(self, plan: Callable[[], str]) -> None:
        """Shows a Spark plan in `firesteel show`; `plan` is called periodically."""

    def send_to_coordinator(self, event: Any) -> None:
        """Sends an operator event to the coordinator in the JobMaster."""

    def request_mail(self, action: Callable[[], None]) -> None:
        """Runs `action` on the task's thread, between elements. May be called on any thread."""

    def yield_to_mail(self, timeout_s: float) -> None:
        """Runs the queued mails in the middle of an element, waiting at most `timeout_s` for one.

        Use it in an operator that waits for an answer of its coordinator, only on the task's
        thread. Raises TaskCancelled if the task is cancelled.
        """

    @property
    def checkpoints(self) -> bool:
        """Whether the job takes checkpoints."""

    @property
    def cancelled(self) -> bool:
        """Whether the task is cancelled. Long-running work should check this and return early."""


class KeyedStateBackend(Protocol):
    """Keyed state by name: picklable values per key and namespace, partitioned by key group."""

    def get(self, name: str, key: Any, namespace: Any = None) -> Any: ...

    def put(self, name: str, key: Any, value: Any, namespace: Any = None) -> None: ...

    def remove(self, name: str, key: Any, namespace: Any = None) -> None: ...


class KeyedRows(Protocol):
    """Keyed state in columns: rows, each with its key in the key columns.

    The operator holds the rows in any form. At a snapshot it provides a function that builds a
    table of them, which costs nothing at that time.
    """

    def restored(self) -> pa.Table | None:
        """Returns the rows of this subtask's keys, those of a key in order. Call it once: the rows
        are not kept.

        Raises FiresteelError if the rows have a different meaning.
        """

    def keep(self, make: Callable[[], pa.Table | None]) -> None:
        """Call it in each `snapshot_state`. Another thread calls `make` some time later, so `make`
        must not refer to anything that changes.
        """


class ColumnMemory(Protocol):
    """The memory for a slot's state in columns. With `state.backend.type: rocksdb`, and in batch
    mode by default, data beyond its managed memory is in unnamed files, which the operating system
    reads and writes.

    Raises FiresteelError if the disk is full.
    """

    @property
    def piece_bytes(self) -> int | None:
        """The maximum size of a part of the state that should be in memory while it is changed, in
        bytes; None: unlimited.
        """

    def empty(self, count: int, dtype: Any) -> Any:
        """Returns a NumPy array with arbitrary content."""

    def full(self, count: int, value: Any, dtype: Any) -> Any: ...

    def grown(self, array: Any, count: int) -> Any:
        """Returns an array that starts with the content of `array` and has room for at least
        `count` values.
        """

    def kept(self, batch: pa.RecordBatch, size_bytes: int | None = None) -> pa.RecordBatch:
        """Returns the batch, or an equal one in a file. `size_bytes` is its size, if known."""


class OperatorState(Protocol):
    """The state of an operator: empty on a first run, the restored snapshot otherwise."""

    @property
    def restored(self) -> bool: ...

    @property
    def columns(self) -> ColumnMemory:
        """Memory for state in columns that may be large."""

    @property
    def keyed(self) -> KeyedStateBackend: ...

    def keyed_rows(
        self,
        name: str,
        key_columns: Sequence[str],
        meaning: Mapping[str, str] | None = None,
        columns: Mapping[str, str] | None = None,
    ) -> KeyedRows:
        """Declares rows as state. `meaning` describes what the rows represent, such as {"window":
        "1 hour"}: rows with a different meaning are not restored. `columns` describes columns whose
        names may change, such as {"_p0_sum": "sum(d)"}: columns with new content are not restored.
        """

    def list_state(self, name: str) -> list[Any]:
        """Returns the list of this subtask's picklable items. A snapshot contains the items that
        are in the list at that time.

        A subtask restores its own items or, if the parallelism changed, its share of all items, in
        order. Items of finished subtasks are dropped.
        """

    def union_list_state(self, name: str) -> list[Any]:
        """Like `list_state`, but every subtask restores the items of all subtasks: it must take its
        own items from them, or all items would be stored once per subtask.

        Either all or none of the operator's subtasks must have finished: while only some have, no
        checkpoint of the job completes.
        """

    def broadcast_state(self, name: str) -> dict[Any, Any]:
        """Returns a dictionary that is equal in all subtasks, because all have processed the same
        elements. Every subtask restores the dictionary of any subtask that had not finished.
        """


class StreamOperator:
    """Base of all operators; every method may be overridden.

    `inputs` is 1, or 2 for a two-input operator (0 for sources).
    """

    inputs: int = 1
    # Why the operator cannot take part in checkpoints; empty if it can, because its state contains
    # everything that it keeps.
    not_checkpointed: str = ""
    # Whether event time after a restore is the same as at the snapshot:
    # `context.timers.current_watermark_us` starts where it was.
    keeps_event_time: bool = False
    # Whether `finish` emits rows with event times: downstream operators get the end of event time
    # after them, and no watermark before.
    emits_at_end: bool = False
    # Whether `open` registers all timers that it needs, including those with a key.
    keeps_timers: bool = False
    # This input is read to its end before the others, whose producers wait. No checkpoint of the
    # job is taken until then.
    reads_first: int | None = None
    # How its results are computed, for `firesteel show --full`. Empty if it calls
    # `PlanMeter.computed_by`.
    computes: str = ""
    context: RuntimeContext
    output: Output

    @property
    def full(self) -> bool:
        """Whether the operator holds its maximum number of rows: the task then reads no input until
        a mail has run.
        """
        return False

    def setup(self, context: RuntimeContext, output: Output) -> None:
        self.context = context
        self.output = output

    def initialize_state(self, state: OperatorState) -> None:
        """Registers state; on recovery `state.restored` is true and the state is filled."""

    def open(self) -> None:
        """Acquires resources. Operators downstream in the chain are already open."""

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        raise NotImplementedError

    def process_watermark(self, watermark: Watermark) -> None:
        """Handles the event time of all inputs; timers up to it have fired."""
        self.output.emit_watermark(watermark)

    def process_status(self, status: StreamStatus) -> None:
        """Handles that all inputs have become idle, or that one of them is active again."""
        self.output.emit_status(status)

    def on_event_time(self, timestamp_us: int, key: Any, namespace: Any) -> None:
        """Handles an event-time timer."""

    def on_event_times(self, due: Iterator[tuple[int, Any, Any]]) -> None:
        """Handles event-time timers in order of their times, including timers that are registered
        meanwhile. Taking a timer (time, key and namespace) from `due` removes it.
        """
        for timestamp_us, key, namespace in due:
            self.on_event_time(timestamp_us, key, namespace)

    def on_processing_time(self, timestamp_ms: int, key: Any, namespace: Any) -> None:
        """Handles a processing-time timer."""

    def flush(self) -> None:
        """Emits rows that are held back for efficiency (a bundle): before barriers, before event
        time advances, when input runs dry and before `finish`.
        """

    def prepare_barrier(self, checkpoint_id: int) -> None:
        """Emits rows that belong before the barrier, which follows after `flush`. Not called after
        `finish`.
        """

    def snapshot_state(self, checkpoint_id: int) -> None:
        """Updates the registered state; the runtime then snapshots it."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None: ...

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None: ...

    def handle_coordinator_event(self, event: Any) -> None:
        """Handles an operator event from the coordinator in the JobMaster."""

    def end_input(self, input_index: int) -> None:
        """Handles the end of this input: no more records arrive."""

    def finish(self) -> None:
        """Emits the remaining rows. Nothing may be emitted afterwards."""

    def stop(self) -> None:
        """Called instead of `finish` when the job stops with a savepoint, which contains the rows
        that are not emitted yet. Nothing may be emitted afterwards.
        """

    def close(self) -> None:
        """Releases all resources; called exactly once on every path. Nothing may be emitted."""


class SourceOperator(StreamOperator):
    """The head of a source task: `poll` is called in a loop on the task's thread."""

    inputs = 0

    # Set by `poll` when there is nothing to read: the task then flushes the chain and sleeps until
    # a mail arrives (a coordinator event, a timer, `request_mail`), at most `poll_interval_s`,
    # before it polls again. None: until a mail arrives.
    waiting: bool = False
    poll_interval_s: float | None = 0.05
    # Whether it reads no more until the next checkpoint, although there may be more.
    limit_reached: bool = False
    # Whether the task marks its output as idle each time that `caught_up` is true.
    reports_idle: bool = False

    def poll(self, max_wait_s: float) -> bool:
        """Emits the next bundle, waiting at most `max_wait_s` for it. Returns False if the source
        is exhausted.

        A source that waits for its coordinator does not wait here, because the answer is a mail: it
        sets `waiting`.
        """
        raise NotImplementedError

    @property
    def caught_up(self) -> bool:
        """Whether it has emitted everything that was available, at some moment since this was last
        true. Read once after each `poll`.
        """
        return self.waiting

    @property
    def splits_received(self) -> int:
        """The number of splits that the source's coordinator has assigned to it."""
        return 0

    @property
    def splits_held(self) -> Sequence[HeldSplit]:
        """The assigned splits, in the order in which they arrived."""
        return ()

    @property
    def has_position(self) -> bool:
        """Whether the source can resume from a position."""
        return type(self).position is not SourceOperator.position

    def position(self) -> Any:
        """Returns the position in the input up to which rows have been emitted, as JSON, without
        rows. Called after `flush`.

        All rows that `poll` has emitted are before it, and all later ones after it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no position")

    def restore(self, position: Any) -> None:
        """Resumes at a `position()` of a source of the same operator. Called after `open` and
        before the first `poll`. Raises FiresteelError if that is not possible. If the parallelism
        was increased, some subtasks are not called.
        """
        raise NotImplementedError(f"{type(self).__name__} has no position")

    def merged(self, positions: Sequence[Any]) -> Any:
        """Returns one position from which `restore` reads the rest of all of these positions: used
        if the parallelism was reduced. Raises FiresteelError if there is none.
        """
        raise FiresteelError(
            f"{self.context.operator_name} cannot be restored with fewer subtasks: this one would"
            f" have to resume {len(positions)} of them. Set the earlier parallelism"
        )
