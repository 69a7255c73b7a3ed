"""Runs a single operator in the caller's thread, with a clock that the caller sets."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from firesteel.common.checkpoints.key_group_content import decode_key_group
from firesteel.common.ids import stable_id
from firesteel.common.key_groups import key_group
from firesteel.common.operator_messages import OperatorEvent, ToOperator
from firesteel.elements import MAX_TIMESTAMP_US, StreamElement, StreamStatus, Watermark
from firesteel.operator import SourceOperator, StreamOperator, TaskInfo
from firesteel.operators import WatermarkAlignmentSpec
from taskexecutor.executor.state import (
    CreateKeyedState,
    HashMapKeyedStateBackend,
    OperatorStateSnapshot,
    RestoredOperatorState,
    TaskOperatorState,
    key_group_range,
)
from taskexecutor.executor.state.files import encoded
from taskexecutor.executor.task.chain import NodeTarget, Target, create_node
from taskexecutor.executor.task.environment import TaskEnvironment
from taskexecutor.executor.task.mailbox import Mailbox
from taskexecutor.executor.task.metrics import OperatorMetrics
from taskexecutor.executor.timing.clock import TaskClock
from taskexecutor.executor.timing.timers import TaskTimers
from taskexecutor.executor.timing.watermarks import ValveEvent


class _Collected:
    """A target that collects every element."""

    def __init__(self) -> None:
        self.elements: list[StreamElement] = []

    def batch(self, batch: pa.RecordBatch) -> None:
        self.elements.append(batch)

    def event(self, event: ValveEvent) -> None:
        self.elements.append(event)

    def finished(self) -> None:
        """Does nothing."""


class OperatorHarness:
    """Runs one operator as a task would, in the caller's thread, with a clock that the caller sets.

    `spark` becomes `context.spark`; `sent` collects the events to the coordinator. `watermark`
    advances event time, `processing_time` processing time. `watermark_alignment` puts the operator
    into a watermark alignment group. `checkpoints`: the job takes checkpoints. `chained`: as in
    RuntimeContext.
    """

    def __init__(
        self,
        operator: StreamOperator,
        input_schemas: Sequence[pa.Schema | None] | None = None,
        *,
        output_schema: pa.Schema | None = None,
        name: str = "operator",
        config: dict[str, str] | None = None,
        spark: Any = None,
        subtask: int = 0,
        parallelism: int = 1,
        max_parallelism: int = 128,
        side_output_tags: Sequence[str] = (),
        restored: RestoredOperatorState | None = None,
        watermark_alignment: WatermarkAlignmentSpec | None = None,
        checkpoints: bool = False,
        chained: bool = False,
        attempt: int = 0,
        create_keyed_state: CreateKeyedState = HashMapKeyedStateBackend,
    ) -> None:
        inputs = len(input_schemas) if input_schemas is not None else operator.inputs
        schemas = tuple(input_schemas) if input_schemas is not None else (None,) * inputs
        self.operator = operator
        self.info = TaskInfo(
            job_id=stable_id("job"),
            job_name="harness",
            vertex_id=stable_id("vertex"),
            task_name=name,
            subtask=subtask,
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            attempt=attempt,
            attempt_id=stable_id(f"attempt {attempt}" if attempt else "attempt"),
        )
        self.sent: list[OperatorEvent] = []
        self.environment = TaskEnvironment(
            info=self.info,
            config=dict(config or {}),
            engine=_Engine(spark),
            send_event=self.sent.append,
            mailbox=Mailbox(),
            clock=TaskClock(),
            checkpoints=checkpoints,
        )
        self.metrics = OperatorMetrics(stable_id(name), name)
        self._task_timers = TaskTimers()
        self._node = create_node(
            operator,
            members=(0,),
            member_ids=(self.metrics.operator_id,),
            metrics=self.metrics,
            environment=self.environment,
            timers=self._task_timers,
            input_schemas=schemas,
            output_schema=output_schema,
            watermark_alignment=watermark_alignment,
            chained=chained,
        )
        self.timers = self._node.timers
        self._inputs = [NodeTarget(self._node, index) for index in range(inputs)]
        self._main = _Collected()
        self._side = {tag: _Collected() for tag in side_output_tags}
        self._node.output.add(self._main)
        for tag, collected in self._side.items():
            self._node.output.add(collected, tag)
        if self._node.watermark_alignment is not None:
            self._node.output.add(self._node.watermark_alignment)
        backend = create_keyed_state(
            key_group_range(subtask, parallelism, max_parallelism),
            lambda key: key_group(key, max_parallelism),
        )
        self.state = TaskOperatorState(backend, restored, max_parallelism=max_parallelism)

    # -- life cycle of the operator

    def initialize(self) -> None:
        self._node.setup()
        self._node.initialize_state(self.state)

    def open(self) -> OperatorHarness:
        self.initialize()
        self._node.open()
        return self

    def snapshot(self, checkpoint_id: int = 1, *, finished: bool = False) -> OperatorStateSnapshot:
        """Takes a snapshot, as a task does when a barrier arrives, or after `finish`."""
        if not finished:
            self.operator.flush()
            self.operator.prepare_barrier(checkpoint_id)
        return self._node.snapshot(checkpoint_id)[1]

    def process(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        self._inputs[input_index].batch(batch)

    def watermark(self, timestamp_us: int, input_index: int | None = None) -> None:
        """Sends a watermark on one input, or on all."""
        for index in range(len(self._inputs)) if input_index is None else (input_index,):
            self._inputs[index].event(Watermark(timestamp_us))

    def idle(self, input_index: int = 0, idle: bool = True) -> None:
        self._inputs[input_index].event(StreamStatus(idle))

    def processing_time(self, now_ms: int) -> None:
        self._task_timers.fire_processing_time(now_ms)

    def run_mails(self) -> None:
        self.environment.process_mails()

    def poll(self) -> bool:
        """Polls a source once."""
        assert isinstance(self.operator, SourceOperator)
        self.run_mails()
        return self.operator.poll(0.0)

    def deliver(self, event: ToOperator) -> None:
        """Delivers an event from the coordinator as a mail: the operator handles it when it yields
        or polls, or when `run_mails` is called.
        """
        self.environment.mailbox.put(lambda: self._node.handle_coordinator_event(event))

    @property
    def stopped(self) -> bool:
        """Returns whether a task would take no input now, because the operator is ahead of its
        alignment group.
        """
        return self._node.watermark_alignment is not None and self._node.watermark_alignment.stopped

    def flush(self) -> None:
        self.operator.flush()

    def end_input(self, input_index: int) -> None:
        """Ends one of several inputs."""
        self._inputs[input_index].event(Watermark(MAX_TIMESTAMP_US))
        self._inputs[input_index].finished()

    def checkpoint(self, checkpoint_id: int, *, finished: bool = False) -> RestoredOperatorState:
        """Takes a snapshot and returns it as the state that a subtask of the same parallelism
        restores.
        """
        snapshot = self.snapshot(checkpoint_id, finished=finished)
        restored = restored_from(snapshot)
        snapshot.keyed.release()
        return restored

    def complete(self, checkpoint_id: int) -> None:
        """Delivers the JobMaster's notification of a complete checkpoint."""
        self._node.notify_checkpoint(checkpoint_id, completed=True)

    def finish(self) -> None:
        """Ends all input: MAX_WATERMARK, then end_input and finish."""
        self._node.advance_to_end_of_event_time()
        self._task_timers.quiesce()
        self._node.finish()

    def close(self) -> None:
        self._task_timers.shut_down()
        self._node.close()

    def end(self) -> None:
        self.finish()
        self.close()

    def cancel(self) -> None:
        self.environment.cancelled = True
        self.environment.mailbox.wake()

    # -- output

    @property
    def elements(self) -> list[StreamElement]:
        return self._main.elements

    @property
    def batches(self) -> list[pa.RecordBatch]:
        return [element for element in self._main.elements if isinstance(element, pa.RecordBatch)]

    @property
    def watermarks_us(self) -> list[int]:
        return [
            element.timestamp_us
            for element in self._main.elements
            if isinstance(element, Watermark)
        ]

    def side(self, tag: str) -> list[pa.RecordBatch]:
        return [
            element for element in self._side[tag].elements if isinstance(element, pa.RecordBatch)
        ]

    def add_target(self, target: Target) -> None:
        """Has a target get the results, after those that collect them."""
        self._node.output.add(target)

    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.batches for row in batch.to_pylist()]


def restored_from(snapshot: OperatorStateSnapshot) -> RestoredOperatorState:
    """Returns the state that a subtask of the same parallelism restores from a snapshot, after
    pickling and unpickling it.
    """
    state = RestoredOperatorState(
        keyed=[entry for _, content in encoded(snapshot) for entry in decode_key_group(content)],
        lists=snapshot.lists,
        union_lists=snapshot.union_lists,
        broadcasts=snapshot.broadcasts,
        watermark_us=snapshot.watermark_us,
    )
    restored: RestoredOperatorState = pickle.loads(pickle.dumps(state))
    return restored


class _Engine:
    def __init__(self, session: Any) -> None:
        self.session = session
