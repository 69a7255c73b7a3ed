"""The operator interface: what runs in a task's chain (spec 000, spec 001).

Life of an operator, in the order of the calls; each is made on the task's own thread, never two at
once:

    setup → initialize_state → open → (process_batch | process_watermark | timers | snapshot_state)* →
    end_input(i) for each input → finish → [snapshot_state → notify_checkpoint_complete] → close

A failure or a cancellation jumps from wherever it is straight to close. Operators of a chain are
opened from the last to the first and finished and closed from the first to the last.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa

from firesteel.elements import StreamStatus, Watermark


class Output(Protocol):
    """Where an operator's results go: the next operators of the chain, or the task's result
    partitions.
    """

    def emit(self, batch: pa.RecordBatch) -> None:
        """Sends a batch on. Blocks while every consumer is out of credit (back-pressure)."""

    def emit_side(self, tag: str, batch: pa.RecordBatch) -> None:
        """Sends a batch to the side output `tag`; dropped if nothing consumes it."""

    def emit_watermark(self, watermark: Watermark) -> None:
        """Sends a watermark on, unless one as late has been sent before."""

    def emit_status(self, status: StreamStatus) -> None:
        """Idle: do not wait for this output's watermarks. The next batch or watermark makes it
        active again.
        """


class TimerService(Protocol):
    """Timers per key and namespace; a timer that is registered twice fires once."""

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
    @property
    def value(self) -> int:
        """So far."""

    def inc(self, count: int = 1) -> None: ...


class TaskCancelled(BaseException):
    """Ends whatever a cancelled task is doing. Not an Exception: a user's `except Exception` must
    not stop it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
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
    """What an operator may know and use of its surroundings."""

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
        """For how long the task has taken no input, in all, because the operator was ahead of its
        alignment group.
        """

    def counter(self, name: str) -> Counter:
        """A counter that is exposed as flink_taskmanager_job_task_operator_<name>."""

    def time(self, kind: Literal["spark", "python"]) -> AbstractContextManager[None]:
        """Accounts what is done inside the `with` as time in Spark or in Python; what it emits is
        not counted twice.
        """

    def count_bundle(self, records: int) -> None:
        """Records that were processed at once: what `firesteel show` and the metrics tell of bundle
        sizes.
        """

    def show_plan(self, plan: Callable[[], str]) -> None:
        """What was run on Spark, for people; `plan` is called now and then."""

    def send_to_coordinator(self, event: Any) -> None:
        """Sends an operator event to the coordinator in the JobMaster."""

    def request_mail(self, action: Callable[[], None]) -> None:
        """From any thread: has `action` run on the task's thread, between elements."""

    def yield_to_mail(self, timeout_s: float) -> None:
        """On the task's thread, in the middle of an element: runs the mails that are queued,
        waiting at most `timeout_s` for one.

        For an operator that can go on only once its coordinator has answered. Raises what ends the
        task if it is cancelled.
        """

    @property
    def cancelled(self) -> bool:
        """Long work should look at this and return early."""


class KeyedStateBackend(Protocol):
    """Keyed state by name: values of any picklable kind under (key, namespace), partitioned by key
    group.
    """

    def get(self, name: str, key: Any, namespace: Any = None) -> Any: ...

    def put(self, name: str, key: Any, value: Any, namespace: Any = None) -> None: ...

    def remove(self, name: str, key: Any, namespace: Any = None) -> None: ...


class OperatorState(Protocol):
    """What `initialize_state` gets: empty on a first run, the restored snapshot otherwise."""

    @property
    def restored(self) -> bool: ...

    @property
    def keyed(self) -> KeyedStateBackend: ...

    def list_state(self, name: str) -> list[Any]:
        """Operator list state: the very list, so what is put in it is snapshotted."""

    def union_list_state(self, name: str) -> list[Any]: ...

    def broadcast_state(self, name: str) -> dict[Any, Any]: ...


class StreamOperator:
    """Base of all operators; every method may be overridden, those that are not do what is natural.

    `inputs` is 1, or 2 for a two-input operator (0 for sources).
    """

    inputs: int = 1
    # This input is read to its end before anything of the others is, whose producers meanwhile wait
    # (back-pressure).
    reads_first: int | None = None
    context: RuntimeContext
    output: Output

    def setup(self, context: RuntimeContext, output: Output) -> None:
        self.context = context
        self.output = output

    def initialize_state(self, state: OperatorState) -> None:
        """Registers state; on recovery `state.restored` is true and the state is filled."""

    def open(self) -> None:
        """Acquires what processing needs. The operators downstream in the chain are open already."""

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        raise NotImplementedError

    def process_watermark(self, watermark: Watermark) -> None:
        """The operator's combined event time advances (all its inputs); timers up to it have fired
        already.
        """
        self.output.emit_watermark(watermark)

    def on_event_time(self, timestamp_us: int, key: Any, namespace: Any) -> None:
        """An event-time timer fires."""

    def on_processing_time(self, timestamp_ms: int, key: Any, namespace: Any) -> None:
        """A processing-time timer fires."""

    def flush(self) -> None:
        """Emits what is held back only for efficiency (a bundle); called before barriers, and when
        input runs dry.
        """

    def snapshot_state(self, checkpoint_id: int) -> None:
        """Brings the registered state up to date; the runtime then snapshots it."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None: ...

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None: ...

    def handle_coordinator_event(self, event: Any) -> None:
        """An operator event from the coordinator in the JobMaster."""

    def end_input(self, input_index: int) -> None:
        """No more records will come on this input."""

    def finish(self) -> None:
        """Emits whatever is left. After it nothing may be emitted."""

    def close(self) -> None:
        """Releases everything; called exactly once on every path, emits nothing."""


class SourceOperator(StreamOperator):
    """The head of a source task: `poll` is called in a loop on the task's thread."""

    inputs = 0

    # Set by `poll` when it had nothing to read: the task then flushes the chain and sleeps until a
    # mail arrives (a coordinator event, a timer, `request_mail`), at most `poll_interval_s`, before
    # it polls again. None: only a mail can bring more.
    waiting: bool = False
    poll_interval_s: float | None = 0.05

    def poll(self, max_wait_s: float) -> bool:
        """Emits the next bundle, waiting at most `max_wait_s` if there is none yet. False: the
        source is exhausted.

        A source that waits for its coordinator must not wait here, because the answer comes as a
        mail: it sets `waiting`.
        """
        raise NotImplementedError
