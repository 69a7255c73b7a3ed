"""The PySpark executor in a slot, simulated: tasks that start, read splits, feed each other, fail,
and hang on cancel.

What it hears and says are the real messages of proto/executor.proto. An attempt reads from its
producers' partitions by result, subtask and attempt, as the deployment told it: one that was told
wrong waits for ever, and is found so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from firesteel._proto import common_pb2, executor_pb2, job_graph_pb2, tasks_pb2
from firesteel.common.ids import ExecutorId
from firesteel.common.job_graph import pointwise_producers
from firesteel.common.states import ExecutionState
from taskexecutor.executor.connectors.splits import Splits
from tests.simulation.processes import Process

if TYPE_CHECKING:
    from tests.simulation.task_executor import TaskExecutorProcess

CHUNKS = 2  # that every collecting task sends

_S = ExecutionState
Partition = tuple[str, str, int, int]  # job, result, producer subtask, attempt


@dataclass(slots=True, kw_only=True)
class SimulatedTask:
    job_id: str
    attempt_id: str
    subtask: int
    attempt: int
    allocation_id: str
    vertex: tasks_pb2.VertexDeployment
    sources: list[Partition]  # what it consumes
    state: ExecutionState = _S.DEPLOYING
    cancelled: bool = False
    reader: Splits = field(default_factory=Splits)
    splits: list[dict[str, Any]] = field(default_factory=list)  # those it has read
    chunk: tasks_pb2.CollectChunk | None = None  # not acknowledged yet
    chunks_acknowledged: int = 0


@dataclass(frozen=True, slots=True)
class _Context:
    """What `Splits` needs of a RuntimeContext."""

    operator_name: str
    send_to_coordinator: Callable[[Any], None]


class ExecutorProcess(Process):
    def __init__(
        self, task_executor: TaskExecutorProcess, executor_id: ExecutorId, slot_index: int
    ) -> None:
        super().__init__(task_executor.world, task_executor.network, f"executor-{executor_id[:6]}")
        self.executor_id = executor_id
        self.slot_index = slot_index
        self.data_address = f"flight-{executor_id[:6]}:1"
        self.tasks: dict[str, SimulatedTask] = {}
        self.job_id = ""
        self.ready = False
        self._task_executor = task_executor
        self._cluster = task_executor.cluster
        self._last_said = self._last_heard = 0.0
        cause_none = not self._cluster.faults_on or not self.world.chance(0.03)
        self.after(
            self.world.between(0.5, 2.0), self._become_ready if cause_none else lambda: self.die(1)
        )

    def _become_ready(self) -> None:
        self.ready = True
        ready = executor_pb2.ExecutorReady(
            executor_id=self.executor_id, data_address=self.data_address, pid=1, jvm_pid=2
        )
        self._say(ready=ready)

    # ---- the link to the TaskExecutor: a Unix socket, quick and in order

    def _say(self, **message: object) -> None:
        said = executor_pb2.ExecutorToTaskExecutor(**message)  # type: ignore[arg-type]
        parent = self._task_executor
        self._last_said = max(self._last_said, self.world.now + self.world.between(0.0001, 0.003))
        self.world.after(
            self._last_said - self.world.now,
            lambda: parent.from_executor(self.executor_id, said) if parent.alive else None,
        )

    def hear(self, message: executor_pb2.TaskExecutorToExecutor) -> None:
        self._last_heard = max(self._last_heard, self.world.now + self.world.between(0.0001, 0.003))
        self.after(self._last_heard - self.world.now, lambda: self._handle(message))

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
                if (task := self.tasks.get(message.operator_event.attempt_id)) is not None:
                    self._operator_event(task, message.operator_event)
            case "analyze":
                self.after(self.world.between(0.02, 0.5), lambda: self._analyzed(message.analyze))
            case "release":
                self._leave()
                released = executor_pb2.SlotReleased(allocation_id=message.release.allocation_id)
                self.after(self.world.between(0.001, 0.1), lambda: self._say(released=released))

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
                tasks_pb2.OperatorSchema(operator_id=o.operator_id, schema=b"schema")
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
            task = SimulatedTask(
                job_id=submit.job_id,
                attempt_id=deployment.attempt_id,
                subtask=deployment.subtask,
                attempt=deployment.attempt,
                allocation_id=deployment.allocation_id,
                vertex=vertex,
                sources=_sources(submit.job_id, vertex, deployment.subtask, locations),
            )
            self.tasks[task.attempt_id] = task
            self._cluster.checkers.task_started(task)
            self.after(self.world.between(0.005, 0.1), lambda task=task: self._initialize(task))

    def _initialize(self, task: SimulatedTask) -> None:
        if not self._goes_on(task):
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
        if not self._goes_on(task):
            return
        self._report(task, _S.RUNNING)
        if self._may_fail():
            self.after(
                self.world.between(0.1, 15.0), lambda: self._fail(task, "a user function raised")
            )
        if task.sources:
            self._look_at_producers(task)
        elif self._source(task) is not None:
            self._ask_for_split(task)
        # else: a source without end

    def _may_fail(self) -> bool:
        return self._cluster.faults_on and self.world.chance(self._cluster.shape.task_failures)

    def _goes_on(self, task: SimulatedTask) -> bool:
        return (
            self.tasks.get(task.attempt_id) is task
            and not task.state.terminal
            and not task.cancelled
        )

    def _report(self, task: SimulatedTask, state: ExecutionState, problem: str = "") -> None:
        task.state = state
        change = tasks_pb2.TaskStateChange(
            attempt_id=task.attempt_id,
            state=state.value,  # type: ignore[arg-type]
            error=common_pb2.ErrorInfo(summary=problem) if problem else None,
        )
        if state.terminal:
            self._publish(task, state)
        self._say(task_states=tasks_pb2.TaskStateChanges(job_id=task.job_id, changes=[change]))

    def _publish(self, task: SimulatedTask, state: ExecutionState) -> None:
        for edge in task.vertex.out_edges:
            self._cluster.partitions[(task.job_id, edge.result_id, task.subtask, task.attempt)] = (
                state
            )

    def _fail(self, task: SimulatedTask, problem: str) -> None:
        if self._goes_on(task):
            self._report(task, _S.FAILED, problem)

    def _finish(self, task: SimulatedTask) -> None:
        if self._goes_on(task):
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
                    "it raised while closing" if raised else "",
                )

        self.after(self.world.between(0.001, 0.5), end)

    # ---- data

    def _look_at_producers(self, task: SimulatedTask) -> None:
        if not self._goes_on(task):
            return
        states = [self._cluster.partitions.get(partition) for partition in task.sources]
        if all(state is _S.FINISHED for state in states):
            self._write_chunks(task)
        elif any(state not in (None, _S.FINISHED) for state in states) and self.world.chance(0.7):
            self._fail(task, "PartitionFailed: the producer failed")
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
        if self._goes_on(task):
            task.reader.ask(self._context(task))

    def _context(self, task: SimulatedTask) -> Any:
        source = self._source(task)
        assert source is not None
        operator_id = source.operator_id
        return _Context(
            source.name,
            lambda request: self._say(
                operator_event=self._event(task, operator_id, request_split=request)
            ),
        )

    def _event(
        self, task: SimulatedTask, operator_id: str, **event: object
    ) -> tasks_pb2.OperatorEvent:
        return tasks_pb2.OperatorEvent(
            job_id=task.job_id,
            operator_id=operator_id,
            subtask=task.subtask,
            attempt_id=task.attempt_id,
            **event,  # type: ignore[arg-type]
        )

    def _operator_event(self, task: SimulatedTask, event: tasks_pb2.OperatorEvent) -> None:
        match event.WhichOneof("event"):
            case "collect_ack":
                if task.chunk is not None and event.collect_ack.sequence == task.chunk.sequence:
                    task.chunk = None
                    task.chunks_acknowledged += 1
                    self._write_chunks(task)
            case "resend" if self._collector(task) is not None:
                self._send_chunk(task)
            case kind:
                task.reader.handle(getattr(event, str(kind)), self._context(task))
                self._read(task)

    def _read(self, task: SimulatedTask) -> None:
        if task.reader.waiting:
            task.splits.append(task.reader.waiting.popleft())
            self.after(self.world.between(0.05, 1.0), lambda: self._ask_for_split(task))
        elif task.reader.exhausted:
            self.after(self.world.between(0.01, 0.2), lambda: self._finish(task))

    def _write_chunks(self, task: SimulatedTask) -> None:
        """All input is there: the rows go to the client, if there is one, chunk by chunk."""
        if self._collector(task) is None or task.chunks_acknowledged == CHUNKS:
            self._finish(task)
        elif self._goes_on(task):
            task.chunk = tasks_pb2.CollectChunk(
                sequence=task.chunks_acknowledged, ipc_stream=b"rows"
            )
            self._send_chunk(task)

    def _send_chunk(self, task: SimulatedTask) -> None:
        collector = self._collector(task)
        if task.chunk is not None and collector is not None:
            self._say(
                operator_event=self._event(task, collector.operator_id, collect_chunk=task.chunk)
            )

    def on_death(self, silently: bool) -> None:
        for task in self.tasks.values():
            if not task.state.terminal:
                self._publish(task, _S.FAILED)


def _sources(
    job_id: str,
    vertex: tasks_pb2.VertexDeployment,
    subtask: int,
    locations: dict[str, tasks_pb2.ResultLocations],
) -> list[Partition]:
    found = []
    for edge, producers in zip(vertex.in_edges, vertex.in_parallelism, strict=True):
        attempts = locations[edge.result_id].attempt
        all_to_all = edge.pattern == job_graph_pb2.ALL_TO_ALL
        wanted = (
            range(producers)
            if all_to_all
            else pointwise_producers(subtask, producers, vertex.vertex.parallelism)
        )
        found += [(job_id, edge.result_id, producer, attempts[producer]) for producer in wanted]
    return found
