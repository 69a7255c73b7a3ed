"""Random legal events, from a seed, against one core; what must hold at every step and at the end
of every story.

The other side is played by `Peers`: TaskExecutors that hold slots and run tasks by the rules of the
slot protocol, so that every event the core sees is one it could see.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace

import pytest

from firesteel.common.file_parts import ListedFile
from firesteel.common.ids import AllocationId, AttemptId, ResultId, TaskExecutorId
from firesteel.common.job_graph import JobGraph, Partitioner, ResultPartitionId, ResultType
from firesteel.common.operator_messages import SplitAssigned, SplitRequested
from firesteel.common.service.core import Tick
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.errors import ErrorInfo
from jobmaster.core import commands, events
from jobmaster.core.execution_graph import ExecutionVertex
from jobmaster.core.failover.restart_strategy import FixedDelay
from jobmaster.core.settings import JobSettings
from jobmaster.core.slots.slot import SlotOffer
from tests.job_master import World, edge, job, offer, operator_id, vertex

S = ExecutionState
STEPS = 400
SEEDS = int(os.environ.get("FIRESTEEL_STORIES", "60"))
ORDER = (S.DEPLOYING, S.INITIALIZING, S.RUNNING, S.FINISHED)


class TaskExecutor:
    def __init__(self, name: str) -> None:
        self.name = TaskExecutorId(name)
        self.slots: dict[AllocationId, SlotOffer] = {}
        self.tasks: dict[AttemptId, ExecutionState] = {}
        self.slot_of: dict[AttemptId, AllocationId] = {}
        self.partitions: set[ResultPartitionId] = set()
        # Released while it was away. The release is resent if it returns, unless the job has ended.
        self.missed: set[ResultPartitionId] = set()
        self.canceling: set[AttemptId] = set()
        self.analyses: list[AllocationId] = []
        self.connected = False
        self.connection = 0


class Peers:
    """Everything around the core. `step` makes one thing happen."""

    def __init__(self, seed: int, *, batch: bool = False) -> None:
        self.random = random.Random(seed)
        self.world = World(
            self._batch_graph() if batch else self._graph(), self._settings(batch=batch)
        )
        self.core = self.world.core
        self.executors: dict[TaskExecutorId, TaskExecutor] = {}
        self.required = 0
        self.sequence = 0
        self.numbers = 0
        self.connections = 0
        self.unlisted: list[commands.ListPaths] = []
        self.splits: Counter[str] = Counter()
        self.received: Counter[AttemptId] = Counter()  # by attempt: how many splits it has had
        some = random.Random(~seed)
        names = ("src", "mid", "other") if batch else ()
        self.not_repeatable = {operator_id(n) for n in names if some.random() < 0.2}
        # By attempt of a consumer and result: the attempts of its producers, where they were.
        self.reads: dict[tuple[AttemptId, ResultId], tuple[int, ...]] = {}
        self.attempts: dict[tuple[str, int, int], AttemptId] = {}  # all that were deployed
        self.exited = False
        self.did: list[str] = []

    def _graph(self) -> JobGraph:
        r = self.random
        source = vertex(
            "src",
            r.randint(1, 4),
            coordinator=("sequence-source", {"start": 0, "end": 50, "split_rows": 10}),
        )
        files = vertex(
            "files",
            r.randint(1, 2),
            coordinator=("file-source", {"paths": ["/x"]}),
            slot_sharing_group="files",
        )
        middle = vertex("mid", r.randint(1, 5))
        return job(
            *([source, files, middle] if r.random() < 0.5 else [source, middle]),
            edges=r.random() < 0.8,
        )

    def _batch_graph(self) -> JobGraph:
        """Four vertices in a row, some of whose results are kept; `other` also feeds the third."""
        r = self.random
        source = ("sequence-source", {"start": 0, "end": 50, "split_rows": 10})
        names = ("src", "mid", "end", "other")
        parallelism = {name: r.randint(1, 4) for name in names}
        edges = []
        for n, (first, then) in enumerate((("src", "mid"), ("mid", "end"), ("other", "end"))):
            partitioner = r.choice(list(Partitioner))
            if partitioner is Partitioner.FORWARD and first != "other":
                parallelism[then] = parallelism[first]
            elif partitioner is Partitioner.FORWARD:
                partitioner = Partitioner.HASH
            edges.append((n, first, then, partitioner, r.random() < 0.8))
        vertices = {
            name: vertex(name, parallelism[name], coordinator=source if name == "src" else None)
            for name in ("src", "mid", "other", "end")
        }
        return replace(
            job(*vertices.values()),
            batch=True,
            edges=tuple(
                edge(
                    vertices[first],
                    vertices[then],
                    partitioner,
                    ResultType.BLOCKING if blocking else ResultType.PIPELINED,
                )
                for _, first, then, partitioner, blocking in edges
            ),
        )

    def _settings(self, *, batch: bool) -> JobSettings:
        r = self.random
        return JobSettings(
            slot_request_timeout_s=r.choice([20.0, 300.0]),
            slot_idle_timeout_s=r.choice([2.0, 50.0]),
            restart=r.choice(
                [
                    FixedDelay(attempts=r.randint(0, 3), delay_s=r.choice([0.0, 1.0])),
                    FixedDelay(attempts=99, delay_s=1.0) if batch else None,
                ]
            ),
        )

    # ---- what the core commands

    def post(self, event: events.Event | Tick) -> None:
        self.did.append(f"{self.world.now:.1f} {event}")
        for command in self.world.post(event):
            self._carry_out(command)
        self.check()

    def _carry_out(self, command: commands.Command) -> None:
        match command:
            case commands.DeclareRequirements():
                assert command.sequence > self.sequence
                self.sequence = command.sequence
                self.required = sum(requirement.count for requirement in command.requirements)
            case commands.ListPaths():
                self.unlisted.append(command)
            case commands.Exit():
                self.exited = True
            case commands.DismissTaskExecutor():
                executor = self.executors.get(command.task_executor_id)
                if executor is not None and executor.connected:
                    if self.core.graph.status is JobStatus.FINISHED:
                        assert executor.partitions <= executor.missed, "no task reads them"
                    del self.executors[executor.name]
            case commands.ReleasePartitions():
                executor = self.executors.get(command.task_executor_id)
                if executor is not None and executor.connected:
                    executor.partitions.difference_update(command.partitions)
                elif executor is not None:
                    executor.missed.update(command.partitions)
            case (
                commands.AnswerSlots()
                | commands.FreeSlots()
                | commands.DeployTasks()
                | commands.CancelTasks()
            ):
                self._to_executor(command)
            case commands.AnalyzeJob():
                executor = self.executors.get(command.task_executor_id)
                if executor is not None and executor.connected:
                    executor.analyses.append(command.allocation_id)
            case commands.SendOperatorMessage(
                message=SplitAssigned(number=number, split_json=split)
            ):
                executor = self.executors.get(command.task_executor_id)
                if (
                    executor is not None
                    and executor.connected
                    and number == self.received[command.attempt_id]
                ):
                    self.received[command.attempt_id] += 1  # else it is lost, or had before
                    self.splits[f"{self.core.restarts}:{split}"] += 1
            case _:
                pass

    def _check_inputs(self, deployed: commands.DeployTasks) -> None:
        """Checks that the BLOCKING results that a task reads are complete."""
        for task in deployed.tasks:
            self.attempts[task.vertex_id, task.subtask, task.attempt] = task.attempt_id
            for result in self.core.graph.inputs_of(task.vertex_id):
                producers = [result.producer.vertices[n] for n in result.producers_of(task.subtask)]
                if result.edge.result_type is ResultType.BLOCKING:
                    assert all(p.current.state is S.FINISHED for p in producers), str(task)
                    assert result.lost.isdisjoint(p.subtask for p in producers), str(task)
                self.reads[task.attempt_id, result.edge.result_id] = tuple(
                    p.current.attempt for p in producers
                )

    def _to_executor(
        self,
        command: commands.AnswerSlots
        | commands.FreeSlots
        | commands.DeployTasks
        | commands.CancelTasks,
    ) -> None:
        if isinstance(command, commands.DeployTasks):
            self._check_inputs(command)
        executor = self.executors.get(command.task_executor_id)
        if executor is None or not executor.connected:
            return  # lost with the stream
        match command:
            case commands.AnswerSlots(rejected=freed) | commands.FreeSlots(allocation_ids=freed):
                for allocation_id in freed:
                    self._drop_slot(executor, allocation_id)
            case commands.DeployTasks():
                for task in command.tasks:
                    assert task.allocation_id in executor.slots, (
                        "deployed into a slot that it does not hold"
                    )
                    if task.attempt_id not in executor.tasks:
                        executor.tasks[task.attempt_id] = S.DEPLOYING
                        executor.slot_of[task.attempt_id] = task.allocation_id
            case commands.CancelTasks():
                executor.canceling.update(command.attempt_ids)

    def _drop_slot(self, executor: TaskExecutor, allocation_id: AllocationId) -> None:
        executor.slots.pop(allocation_id, None)
        for attempt_id in [a for a, slot in executor.slot_of.items() if slot == allocation_id]:
            del executor.slot_of[attempt_id], executor.tasks[attempt_id]
            executor.canceling.discard(attempt_id)

    # ---- what happens

    def step(self, *, calm: bool) -> None:
        """One event. Calm: only what leads forward, so that every story ends."""
        actions = [
            self.offer_slots,
            self.advance_task,
            self.advance_task,
            self.advance_task,
            self.answer,
            self.wait,
            self.reconnect,
        ]
        if not calm:
            actions += [
                self.lose_slot,
                self.break_stream,
                self.kill,
                self.ask_split,
                self.repeat_messages,
                self.fail_task,
            ]
        self.random.choice(actions)()

    def _any(self) -> TaskExecutor | None:
        connected = [executor for executor in self.executors.values() if executor.connected]
        return self.random.choice(connected) if connected else None

    def offer_slots(self) -> None:
        held = sum(len(executor.slots) for executor in self.executors.values())
        missing = self.required - held
        if missing <= 0 and self.random.random() < 0.9:
            return
        if len(self.executors) < 3:
            self.numbers += 1
            new = TaskExecutor(f"te-{self.numbers}")
            self.executors[new.name] = new
            self._connect(new)
        executor = self._any()
        if executor is None:
            return
        offers = []
        for _ in range(self.random.randint(1, max(1, missing))):
            self.numbers += 1
            slot = offer(self.numbers)
            executor.slots[slot.allocation_id] = slot
            offers.append(slot)
        self.post(events.SlotsOffered(task_executor_id=executor.name, slots=tuple(offers)))

    def _connect(self, executor: TaskExecutor) -> None:
        self.connections += 1
        executor.connected, executor.connection = True, self.connections
        if not self.core.graph.status.terminal:
            executor.missed.clear()
        self.post(
            events.TaskExecutorConnected(
                task_executor_id=executor.name,
                connection=executor.connection,
                host="host",
                slots=tuple(executor.slots.values()),
                tasks=tuple(events.TaskUpdate(a, state) for a, state in executor.tasks.items()),
                partitions=tuple(sorted(executor.partitions)),
            )
        )

    def advance_task(self) -> None:
        executor = self._any()
        if executor is None:
            return
        for attempt_id in list(executor.canceling):
            state = executor.tasks.get(attempt_id, S.CANCELED)
            executor.canceling.discard(attempt_id)
            ended = state if state.terminal else S.CANCELED
            if attempt_id in executor.tasks:
                executor.tasks[attempt_id] = ended
            self._report(executor, attempt_id, ended)
            return
        live = [attempt_id for attempt_id, state in executor.tasks.items() if not state.terminal]
        if live:
            attempt_id = self.random.choice(live)
            position = ORDER.index(executor.tasks[attempt_id])
            executor.tasks[attempt_id] = ORDER[min(3, position + self.random.choice([1, 1, 1, 2]))]
            if executor.tasks[attempt_id] is S.FINISHED:
                self._keep_results(executor, attempt_id)
            self._report(executor, attempt_id, executor.tasks[attempt_id])

    def _keep_results(self, executor: TaskExecutor, attempt_id: AttemptId) -> None:
        execution = self.core.graph.attempts.get(attempt_id)
        if execution is not None:  # otherwise they would be unknown
            vertex_id = execution.vertex.job_vertex.vertex.vertex_id
            executor.partitions.update(
                ResultPartitionId(
                    result.edge.result_id, execution.vertex.subtask, execution.attempt
                )
                for result in self.core.graph.outputs_of(vertex_id)
                if result.edge.result_type is ResultType.BLOCKING
            )

    def _unreadable(self, attempt_id: AttemptId) -> ResultPartitionId | None:
        """One of those that the task reads, sometimes."""
        execution = self.core.graph.attempts.get(attempt_id)
        found = [
            ResultPartitionId(result_id, producer, attempt)
            for (reader, result_id), attempts in self.reads.items()
            if reader == attempt_id and execution is not None
            if self.core.graph.result(result_id).edge.result_type is ResultType.BLOCKING
            for producer, attempt in zip(
                self.core.graph.result(result_id).producers_of(execution.vertex.subtask),
                attempts,
                strict=True,
            )
        ]
        return self.random.choice([None, *found])

    def fail_task(self) -> None:
        executor = self._any()
        live = [a for a, state in executor.tasks.items() if not state.terminal] if executor else []
        if executor is not None and live and self.random.random() < 0.3:
            attempt_id = self.random.choice(live)
            executor.tasks[attempt_id] = S.FAILED
            self._report(executor, attempt_id, S.FAILED, self._unreadable(attempt_id))

    def _report(
        self,
        executor: TaskExecutor,
        attempt_id: AttemptId,
        state: ExecutionState,
        unreadable: ResultPartitionId | None = None,
    ) -> None:
        error = ErrorInfo(summary="boom") if state is S.FAILED else None
        update = events.TaskUpdate(attempt_id, state, error, unreadable)
        self.post(events.TaskStatesReported(task_executor_id=executor.name, updates=(update,)))

    def answer(self) -> None:
        """Somebody who was asked answers: the disk, or the slot that analyses."""
        if self.unlisted:
            listing = self.unlisted.pop()
            if self.random.random() < 0.05:
                self.post(
                    events.PathsMissing(operator_id=listing.operator_id, problem="no such path")
                )
            else:
                self.post(
                    events.PathsListed(
                        operator_id=listing.operator_id,
                        files=tuple(ListedFile(f"/x/{n}", 1, 0) for n in "ab"),
                    )
                )
            return
        executor = self._any()
        if executor is not None and executor.analyses:
            allocation_id = executor.analyses.pop()
            if allocation_id not in executor.slots:
                return
            operators = [o for v in self.core.graph.job_graph.vertices for o in v.operators]
            analyses = tuple(
                events.OperatorAnalysis(
                    o.operator_id, b"", "", repeatable=o.operator_id not in self.not_repeatable
                )
                for o in operators
            )
            self.post(events.JobAnalyzed(task_executor_id=executor.name, operators=analyses))

    def wait(self) -> None:
        end = self.world.now + self.random.choice([0.1, 1.0, 3.0])
        for executor in list(self.executors.values()):
            if executor.connected:
                self.post(events.TaskExecutorSeen(task_executor_id=executor.name))
        while (deadline := self.core.next_deadline()) is not None and deadline <= end:
            self.world.now = max(self.world.now, deadline)
            self.post(Tick())
        self.world.now = end

    def reconnect(self) -> None:
        for executor in list(self.executors.values()):
            if not executor.connected:
                self._connect(executor)

    def lose_slot(self) -> None:
        executor = self._any()
        if executor is not None and executor.slots and self.random.random() < 0.3:
            allocation_id = self.random.choice(list(executor.slots))
            self._drop_slot(executor, allocation_id)
            lost = ErrorInfo(summary="its process was killed")
            self.post(
                events.SlotLost(
                    task_executor_id=executor.name, allocation_id=allocation_id, error=lost
                )
            )

    def break_stream(self) -> None:
        executor = self._any()
        if executor is not None and self.random.random() < 0.3:
            executor.connected = False
            executor.analyses.clear()
            self.post(
                events.TaskExecutorDisconnected(
                    task_executor_id=executor.name, connection=executor.connection
                )
            )

    def kill(self) -> None:
        executor = self._any()
        if executor is not None and self.random.random() < 0.15:
            del self.executors[executor.name]
            self.post(
                events.TaskExecutorDisconnected(
                    task_executor_id=executor.name, connection=executor.connection
                )
            )
            if self.random.random() < 0.5:
                self.post(events.TaskExecutorLost(task_executor_id=executor.name, cause="killed"))

    def ask_split(self) -> None:
        sources = [
            e
            for e in self.world.executions("src")
            if e.state in (S.RUNNING, S.CANCELING) and e.slot is not None
        ]
        if sources:
            execution = self.random.choice(sources)
            assert execution.slot is not None
            self.post(
                events.OperatorMessageReceived(
                    task_executor_id=execution.slot.task_executor_id,
                    operator_id=operator_id("src"),
                    attempt_id=execution.attempt_id,
                    message=SplitRequested(received=self.received[execution.attempt_id]),
                )
            )

    def repeat_messages(self) -> None:
        """A message arrives a second time, or is about what is no more."""
        executor = self._any()
        if executor is not None:
            for attempt_id, state in list(executor.tasks.items())[:3]:
                self._report(executor, attempt_id, state)
            self.post(
                events.SlotsOffered(
                    task_executor_id=executor.name, slots=tuple(executor.slots.values())
                )
            )
        self.post(events.ResourceManagerConnected())

    # ---- what must hold

    def check(self) -> None:
        """`World` validates the core after every event; this is what its peers can see."""
        declared = sum(requirement.count for requirement in self.core.pool.requirements())
        assert declared == self.required
        # Each split has one owner; only an attempt that ended without finishing gives its splits to
        # others.
        enumerator = self.core.coordinators.by_operator[operator_id("src")]
        owned = [split for splits in enumerator._owned.values() for split in splits]  # type: ignore[attr-defined]
        assert len(owned) == len(set(owned))

    def check_rows(self) -> None:
        """Where an attempt of a producer distributes its rows in its own way, all consumers have
        read the same one. All have read the rows that are there at the end.
        """
        for result in self.core.graph.results:
            for consumer in result.consumer.vertices if self.not_repeatable else ():
                read = self.reads[consumer.current.attempt_id, result.edge.result_id]
                for n, attempt in zip(result.producers_of(consumer.subtask), read, strict=True):
                    producer = result.producer.vertices[n]
                    rows, now = self.made(producer, attempt), producer.current.attempt
                    assert rows == self.made(producer, now), consumer.current.name
            if result.edge.partitioner not in (Partitioner.REBALANCE, Partitioner.RESCALE):
                continue
            if result.edge.result_type is ResultType.BLOCKING:
                for consumer in result.consumer.vertices:
                    producers = result.producers_of(consumer.subtask)
                    expected = [result.producer.vertices[n].current.attempt for n in producers]
                    read = self.reads[consumer.current.attempt_id, result.edge.result_id]
                    assert list(read) == expected, consumer.current.name

    def made(self, vertex: ExecutionVertex, attempt: int) -> object:
        """Equal for attempts that produce the same rows."""
        job_vertex = vertex.job_vertex
        vertex_id = job_vertex.vertex.vertex_id
        attempt_id = self.attempts[vertex_id, vertex.subtask, attempt]
        if not self.not_repeatable.isdisjoint(o.operator_id for o in job_vertex.vertex.operators):
            return attempt_id
        return [
            self.made(result.producer.vertices[n], read)
            for result in self.core.graph.inputs_of(vertex_id)
            for n, read in zip(
                result.producers_of(vertex.subtask),
                self.reads[attempt_id, result.edge.result_id],
                strict=True,
            )
        ]

    def check_end(self) -> None:
        status = self.core.graph.status
        assert status.globally_terminal, f"it never ended: {self.core.graph}"
        assert self.core.next_deadline() is None
        self.reconnect()  # those that were away come back and are sent away with all they hold
        assert not any(executor.connected for executor in self.executors.values())
        if status is JobStatus.FINISHED:
            assert {e.state for e in self.world.executions()} == {S.FINISHED}
            self.check_rows()
        if status is JobStatus.FAILED:
            assert self.core.exceptions.latest is not None
        self.post(events.TerminalStatusStored())
        assert self.exited


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_story_ends_well(seed: int, batch: bool) -> None:
    peers = Peers(seed, batch=batch)
    try:
        peers.post(events.JobStarted())
        cancel_at = peers.random.choice([None, peers.random.randrange(STEPS)])
        for step in range(STEPS):
            if step == cancel_at:
                peers.post(events.CancelRequested())
            peers.step(calm=step > STEPS // 3 and not batch)
        for _ in range(20 * STEPS):
            if peers.core.graph.status.terminal:
                break
            peers.step(calm=True)
        peers.check_end()
    except BaseException:
        print(f"seed {seed}; the last events:\n  " + "\n  ".join(peers.did[-25:]))
        raise
