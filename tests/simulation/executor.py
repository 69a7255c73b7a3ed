"""The PySpark executor in a slot, simulated: tasks that start, read splits, feed each other, fail,
and hang on cancel.

It speaks proto/executor.proto over the real link. An attempt reads from its producers' partitions
by result, subtask and attempt, as its deployment names them: one with a wrong name
waits for ever, which the checkers report.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

from firesteel._proto import common_pb2, executor_pb2, executor_pb2_grpc, job_graph_pb2, tasks_pb2
from firesteel.common.ids import ExecutorId, ResultId
from firesteel.common.job_graph import (
    DistributionPattern,
    Partitioner,
    ResultPartitionId,
    StoredPartition,
    pointwise_producers,
)
from firesteel.common.operator_messages import (
    ChunkAcknowledged,
    ChunkCollected,
    OperatorEvent,
    OperatorMessage,
    Resend,
)
from firesteel.common.rpc.convert import OPERATOR_EVENT, PARTITION_ID, STORED_PARTITION
from firesteel.common.states import ExecutionState
from taskexecutor.executor.connectors.splits import Splits
from taskexecutor.executor.executor_link import EXECUTOR_ID_KEY
from tests.simulation.checkpoints import Partition, TaskCheckpoints, restored_from
from tests.simulation.services import option
from tests.simulation.world import SimulatedProcess

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

CHUNKS = 2  # that every collecting task sends

_HEARTBEAT = executor_pb2.ExecutorToTaskExecutor(heartbeat=common_pb2.Heartbeat())
_S = ExecutionState


StoredAt = tuple[str, ResultPartitionId]  # where it is served


@dataclass(slots=True, kw_only=True)
class SimulatedTask:
    job_id: str
    attempt_id: str
    subtask: int
    attempt: int
    allocation_id: str
    vertex: tasks_pb2.VertexDeployment
    sources: list[Partition]  # what it consumes
    stored: list[StoredAt]  # what it reads of BLOCKING results, and has not read yet
    inputs: list[ResultPartitionId]  # all that it reads
    state: ExecutionState = _S.DEPLOYING
    cancelled: bool = False
    reader: Splits = field(default_factory=Splits)
    splits: list[dict[str, Any]] = field(default_factory=list)  # those it has read
    chunk: ChunkCollected | None = None  # not acknowledged yet
    chunks_acknowledged: int = 0
    checkpoints: TaskCheckpoints | None = None  # None: its job takes none


@dataclass(frozen=True, slots=True)
class _Context:
    """The part of a RuntimeContext that `Splits` uses."""

    operator_name: str
    send_to_coordinator: Callable[[Any], None]


class SlotProcess:
    """Runs as `python -m taskexecutor.executor`, over the real link."""

    def __init__(
        self, cluster: Cluster, process: SimulatedProcess, executor_id: ExecutorId
    ) -> None:
        self.executor_id = executor_id
        self.name = process.name
        self.tasks: dict[str, SimulatedTask] = {}
        self.job_id = ""
        self.task_executor = process.parent
        self._cluster = self.cluster = cluster
        self._process = process
        self.world = cluster.world
        self._outbox: asyncio.Queue[executor_pb2.ExecutorToTaskExecutor] = asyncio.Queue()
        process.service = self
        process.on_end.append(self._died)

    async def run(self, link_address: str) -> None:
        """Runs until the link ends."""
        async with self._process.platform.transport.channel(link_address) as channel:
            stub: Any = executor_pb2_grpc.ExecutorLinkStub(channel)  # type: ignore[no-untyped-call]
            call = stub.Connect(
                self._said(),
                metadata=((EXECUTOR_ID_KEY, self.executor_id),),
                wait_for_ready=True,
            )
            self._say(
                ready=executor_pb2.ExecutorReady(
                    executor_id=self.executor_id,
                    data_address=f"flight-{self.executor_id[:6]}:1",
                    pid=self._process.pid,
                    jvm_pid=2,
                )
            )
            self._process.announce_ready()
            self._send_heartbeats()
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for message in call:
                    self._handle(message)

    async def _said(self) -> AsyncIterator[executor_pb2.ExecutorToTaskExecutor]:
        while True:
            yield await self._outbox.get()

    def _send_heartbeats(self) -> None:
        self.after(self._cluster.shape.heartbeat_interval_s, self._send_heartbeats)
        self._outbox.put_nowait(_HEARTBEAT)

    def _say(self, **message: object) -> None:
        self.say(executor_pb2.ExecutorToTaskExecutor(**message))  # type: ignore[arg-type]

    def say(self, message: executor_pb2.ExecutorToTaskExecutor) -> None:
        self._outbox.put_nowait(message)

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.world.loop.call_later(delay_s, action)

    def note(self, what: str) -> None:
        self.world.note(self.name, what)

    def _handle(self, message: executor_pb2.TaskExecutorToExecutor) -> None:
        match message.WhichOneof("message"):
            case "assign":
                self._leave()
                self.job_id = message.assign.job_id
            case "submit":
                self._submit(message.submit)
            case "cancel":
                for attempt_id in message.cancel.attempt_ids:
                    self._cancel(attempt_id)
            case "operator_event":
                event = OPERATOR_EVENT.decode(message.operator_event)
                if (task := self.tasks.get(event.attempt_id)) is not None:
                    self._operator_event(task, event.message)
            case "analyze":
                self.after(self.world.between(0.02, 0.5), lambda: self._analyzed(message.analyze))
            case "trigger_checkpoint":
                trigger = message.trigger_checkpoint
                if trigger.HasField("base") and not trigger.savepoint:
                    self._cluster.bases[trigger.job_id, trigger.checkpoint_id] = trigger.base
                for task in self._with_checkpoints(trigger.attempt_ids):
                    splits = trigger.splits.get(task.attempt_id, 0)
                    task.checkpoints.trigger(trigger.checkpoint_id, splits)  # type: ignore[union-attr]
            case "notify_checkpoint":
                notice = message.notify_checkpoint
                for task in self._with_checkpoints(notice.attempt_ids):
                    task.checkpoints.notice(  # type: ignore[union-attr]
                        notice.checkpoint_id, completed=notice.completed
                    )
            case "adopt":
                for attempt_id in message.adopt.attempt_ids:
                    if (adopted := self.tasks.get(attempt_id)) is not None:
                        self._answer_adoption(adopted)
            case "release":
                self._leave()
                released = executor_pb2.SlotReleased(allocation_id=message.release.allocation_id)
                self.after(self.world.between(0.001, 0.1), lambda: self._say(released=released))

    def _with_checkpoints(self, attempt_ids: Sequence[str]) -> list[SimulatedTask]:
        found = [task for i in attempt_ids if (task := self.tasks.get(i)) is not None]
        return [task for task in found if task.checkpoints is not None and self.goes_on(task)]

    def _answer_adoption(self, task: SimulatedTask) -> None:
        """Once it runs, between two elements: not while it waits for an acknowledgement."""
        if not self.goes_on(task):
            return
        if task.state is not _S.RUNNING or task.chunk is not None:
            self.after(0.1, lambda: self._answer_adoption(task))
            return
        held = tasks_pb2.TaskHeld(job_id=task.job_id, attempt_id=task.attempt_id)
        if task.checkpoints is not None:
            held.open_checkpoints.extend(task.checkpoints.open)
            held.data_ended = task.checkpoints.data_ended
        held.splits.extend(self._held(task))
        self._say(task_held=held)

    def _held(self, task: SimulatedTask) -> list[tasks_pb2.HeldSplits]:
        source = self._source(task)
        if source is None:
            return []
        return [
            tasks_pb2.HeldSplits(
                operator_id=source.operator_id,
                places=[split.place for split in task.reader.held],
                digests=[split.digest for split in task.reader.held],
            )
        ]

    def _leave(self) -> None:
        self.tasks.clear()
        self.job_id = ""

    def _analyzed(self, request: tasks_pb2.Analyze) -> None:
        result = tasks_pb2.AnalyzeResult(job_id=request.job_id)
        if request.job_graph.name.endswith("bad plan"):
            result.error.summary = "unknown column"
        else:
            operators = [
                operator for vertex in request.job_graph.vertices for operator in vertex.operators
            ]
            result.schemas.extend(
                tasks_pb2.OperatorSchema(
                    operator_id=o.operator_id, schema=b"schema", repeatable=True
                )
                for o in operators
            )
        self._say(analyze_result=result)

    # ---- tasks

    def _submit(self, submit: tasks_pb2.SubmitTasks) -> None:
        vertices = {vertex.vertex.vertex_id: vertex for vertex in submit.vertices}
        located = [tasks_pb2.ResultLocations.FromString(data) for data in submit.locations]
        locations = {location.result_id: location for location in located}
        for deployment in submit.tasks:
            if deployment.attempt_id in self.tasks:
                continue
            vertex = vertices[deployment.vertex_id]
            blocking = {e.result_id for e in vertex.in_edges if _is_blocking(e)}
            inputs = list(_inputs(vertex, deployment.subtask, locations))
            task = SimulatedTask(
                job_id=submit.job_id,
                attempt_id=deployment.attempt_id,
                subtask=deployment.subtask,
                attempt=deployment.attempt,
                allocation_id=deployment.allocation_id,
                vertex=vertex,
                sources=[
                    (submit.job_id, *partition)
                    for _, partition in inputs
                    if partition.result_id not in blocking
                ],
                stored=[found for found in inputs if found[1].result_id in blocking],
                inputs=[partition for _, partition in inputs],
            )
            self.tasks[task.attempt_id] = task
            if submit.checkpoint_directory:
                restored = restored_from(deployment)
                task.checkpoints = TaskCheckpoints(self, task, restored)
                self._cluster.checkers.task_restored(task, submit.job_master_epoch, restored)
            self._cluster.checkers.task_started(task)
            self.after(self.world.between(0.005, 0.1), lambda task=task: self._initialize(task))

    def _initialize(self, task: SimulatedTask) -> None:
        if not self.goes_on(task):
            return
        self._report(task, _S.INITIALIZING)
        if self._may_fail():
            self.after(
                self.world.between(0.0, 0.1),
                lambda: self._fail(task, "an operator could not be opened"),
            )
        else:
            self.after(self.world.between(0.005, 0.3), lambda: self._run(task))

    def _run(self, task: SimulatedTask) -> None:
        if not self.goes_on(task):
            return
        self._report(task, _S.RUNNING)
        if self._may_fail():
            self.after(
                self.world.between(0.1, 15.0), lambda: self._fail(task, "a user function raised")
            )
        if task.checkpoints is not None:
            task.checkpoints.begin()
            if (restored := task.checkpoints.restored) is not None:
                task.splits.extend(restored.splits)
                if restored.waiting and self._source(task) is not None:
                    task.reader.restore(restored.waiting, self._context(task))
                if restored.finished:
                    task.checkpoints.end_data()
                    return
        if task.stored:
            self._read_stored(task)
        else:
            self._read_inputs(task)

    def _read_stored(self, task: SimulatedTask) -> None:
        """Partition by partition; one that cannot be read fails the task."""
        if not self.goes_on(task):
            return
        if not task.stored:
            self._read_inputs(task)
            return
        address, partition = task.stored[0]
        cluster = self._cluster
        damaged = cluster.faults_on and self.world.chance(cluster.shape.damaged_results)
        if not damaged and cluster.results.readable(address, task.job_id, partition):
            task.stored.pop(0)
            self.after(self.world.between(0.05, 1.0), lambda: self._read_stored(task))
        else:
            self._cluster.checkers.unreadable += 1
            self._fail(task, f"{partition} cannot be read", partition, consequence=True)

    def _read_inputs(self, task: SimulatedTask) -> None:
        if task.sources:
            self._look_at_producers(task)
        elif task.vertex.in_edges:  # all of it was read, or had ended before the job was restored
            self._write_chunks(task)
        elif self._source(task) is not None:
            self._read(task) if task.reader.waiting else self._ask_for_split(task)
        # else: a source without end

    def _may_fail(self) -> bool:
        return self._cluster.faults_on and self.world.chance(self._cluster.shape.task_failures)

    def goes_on(self, task: SimulatedTask) -> bool:
        return (
            self.tasks.get(task.attempt_id) is task
            and not task.state.terminal
            and not task.cancelled
        )

    def _report(
        self,
        task: SimulatedTask,
        state: ExecutionState,
        error: common_pb2.ErrorInfo | None = None,
        unreadable: ResultPartitionId | None = None,
    ) -> None:
        task.state = state
        stored = [
            StoredPartition(
                ResultPartitionId(ResultId(e.result_id), task.subtask, task.attempt), 1, 1
            )
            for e in task.vertex.out_edges
            if state is _S.FINISHED and _is_blocking(e)
        ]
        change = tasks_pb2.TaskStateChange(
            attempt_id=task.attempt_id,
            state=state.value,  # type: ignore[arg-type]
            error=error,
            partitions=map(STORED_PARTITION.encode, stored),
            unreadable=PARTITION_ID.encode(unreadable) if unreadable else None,
            splits=self._held(task) if state is _S.FINISHED and not task.checkpoints else (),
        )
        if state.terminal:
            self._publish(task, state)
        self._say(task_states=tasks_pb2.TaskStateChanges(job_id=task.job_id, updates=[change]))

    def _publish(self, task: SimulatedTask, state: ExecutionState) -> None:
        for partition in self.partitions_of(task):
            self._cluster.partitions[partition] = state

    def partitions_of(self, task: SimulatedTask) -> list[Partition]:
        return [
            (task.job_id, edge.result_id, task.subtask, task.attempt)
            for edge in task.vertex.out_edges
        ]

    def _fail(
        self,
        task: SimulatedTask,
        problem: str,
        unreadable: ResultPartitionId | None = None,
        *,
        consequence: bool = False,
    ) -> None:
        if self.goes_on(task):
            error = common_pb2.ErrorInfo(summary=problem, consequence=consequence)
            self._report(task, _S.FAILED, error, unreadable)

    def fail_a_task(self) -> None:
        going = [task for task in self.tasks.values() if self.goes_on(task)]
        if going:
            self._fail(self.world.random.choice(going), "a user function raised")

    def _finish(self, task: SimulatedTask) -> None:
        """All is read and written."""
        if not self.goes_on(task):
            return
        if task.checkpoints is not None:
            task.checkpoints.end_data()
        else:
            self.report_finished(task)

    def report_finished(self, task: SimulatedTask) -> None:
        if self.goes_on(task):
            self._cluster.checkers.task_finished(task)
            self._report(task, _S.FINISHED)

    def _cancel(self, attempt_id: str) -> None:
        task = self.tasks.get(attempt_id)
        if task is None or task.cancelled or task.state.terminal:
            return
        task.cancelled = True
        if self._cluster.faults_on and self.world.chance(self._cluster.shape.hanging_cancels):
            self.note(f"task {attempt_id} hangs on cancel")
            return

        def end() -> None:
            if not task.state.terminal and self.tasks.get(attempt_id) is task:
                raised = self.world.chance(0.1)
                self._report(
                    task,
                    _S.FAILED if raised else _S.CANCELED,
                    common_pb2.ErrorInfo(summary="it raised while closing") if raised else None,
                )

        self.after(self.world.between(0.001, 0.5), end)

    # ---- data

    def _look_at_producers(self, task: SimulatedTask) -> None:
        if not self.goes_on(task):
            return
        states = [
            _S.FINISHED
            if partition in self._cluster.data_ended
            else self._cluster.partitions.get(partition)
            for partition in task.sources
        ]
        if all(state is _S.FINISHED for state in states):
            self._write_chunks(task)
        elif any(state not in (None, _S.FINISHED) for state in states) and self.world.chance(0.7):
            self._fail(task, "the producer failed", consequence=True)
        else:
            self.after(self.world.between(0.2, 0.6), lambda: self._look_at_producers(task))

    def _source(self, task: SimulatedTask) -> job_graph_pb2.Operator | None:
        return next(
            (o for o in task.vertex.vertex.operators if o.coordinator_kind.endswith("source")), None
        )

    def _collector(self, task: SimulatedTask) -> job_graph_pb2.Operator | None:
        return next(
            (o for o in task.vertex.vertex.operators if o.coordinator_kind == "collect"), None
        )

    def _ask_for_split(self, task: SimulatedTask) -> None:
        if self.goes_on(task):
            task.reader.ask(self._context(task))

    def _context(self, task: SimulatedTask) -> Any:
        source = self._source(task)
        assert source is not None
        operator_id = source.operator_id
        return _Context(source.name, lambda request: self._send_event(task, operator_id, request))

    def _send_event(self, task: SimulatedTask, operator_id: str, message: OperatorMessage) -> None:
        event = OperatorEvent(
            job_id=task.job_id,
            operator_id=operator_id,
            subtask=task.subtask,
            attempt_id=task.attempt_id,
            message=message,
        )
        self._say(operator_event=OPERATOR_EVENT.encode(event))

    def _operator_event(self, task: SimulatedTask, message: OperatorMessage) -> None:
        match message:
            case ChunkAcknowledged():
                if task.chunk is not None and message.sequence == task.chunk.sequence:
                    task.chunk = None
                    task.chunks_acknowledged += 1
                    self._write_chunks(task)
            case Resend() if self._collector(task) is not None:
                self._send_chunk(task)
            case _:
                task.reader.handle(message, self._context(task))
                if task.checkpoints is not None:
                    task.checkpoints.look_at_triggers()
                self._read(task)

    def _read(self, task: SimulatedTask) -> None:
        if task.reader.waiting:
            task.splits.append(task.reader.waiting.popleft().split)
            self.after(self.world.between(0.05, 1.0), lambda: self._ask_for_split(task))
        elif task.reader.exhausted:
            self.after(self.world.between(0.01, 0.2), lambda: self._finish(task))

    def _write_chunks(self, task: SimulatedTask) -> None:
        """All input is there: the rows go to the client, if there is one, chunk by chunk."""
        if self._collector(task) is None or task.chunks_acknowledged == CHUNKS:
            self._finish(task)
        elif self.goes_on(task):
            task.chunk = ChunkCollected(sequence=task.chunks_acknowledged, ipc_stream=b"rows")
            self._send_chunk(task)

    def _send_chunk(self, task: SimulatedTask) -> None:
        collector = self._collector(task)
        if task.chunk is not None and collector is not None:
            self._send_event(task, collector.operator_id, task.chunk)

    def _died(self) -> None:
        for task in self.tasks.values():
            if not task.state.terminal:
                self._publish(task, _S.FAILED)


async def slot_process(
    cluster: Cluster, process: SimulatedProcess, arguments: Sequence[str]
) -> None:
    executor_id = ExecutorId(option(arguments, "--executor-id"))
    await SlotProcess(cluster, process, executor_id).run(option(arguments, "--link"))


def _is_blocking(edge: job_graph_pb2.JobEdge) -> bool:
    return edge.result_type == job_graph_pb2.BLOCKING


def _inputs(
    vertex: tasks_pb2.VertexDeployment,
    subtask: int,
    locations: dict[str, tasks_pb2.ResultLocations],
) -> Iterator[StoredAt]:
    for edge, producers in zip(vertex.in_edges, vertex.in_parallelism, strict=True):
        location = locations[edge.result_id]
        if location.ended:
            continue
        all_to_all = Partitioner(edge.partitioner).pattern is DistributionPattern.ALL_TO_ALL
        wanted = (
            range(producers)
            if all_to_all
            else pointwise_producers(subtask, producers, vertex.vertex.parallelism)
        )
        for producer in wanted:
            address = location.addresses[location.address_index[producer]]
            attempt = location.attempts[producer]
            yield address, ResultPartitionId(ResultId(edge.result_id), producer, attempt)
