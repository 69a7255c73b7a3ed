"""A job on a cluster in this process: its JobMaster's core, and the real tasks in slots that have
no Spark. Between them are the real messages, exchange and files of checkpoints; the job store is a
list. A death happens in memory: a slot is cut off, and its tasks receive no further message.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, assert_never

from firesteel import Environment
from firesteel._proto import executor_pb2, job_master_pb2
from firesteel.common.checkpoints.state import CompleteCheckpoint
from firesteel.common.checkpoints.storage import StorageError
from firesteel.common.config import Configuration
from firesteel.common.ids import AllocationId, ExecutorId, IdSource, JobId, TaskExecutorId
from firesteel.common.process import temporary
from firesteel.common.rpc.convert import JOB_GRAPH
from firesteel.common.service.core import Tick
from firesteel.common.states import ExecutionState
from jobmaster.checkpoint_store import CheckpointStore
from jobmaster.convert import TaskExecutorMessages, from_task_executor
from jobmaster.core import commands, events
from jobmaster.core.core import JobMasterCore
from jobmaster.core.settings import settings_from
from jobmaster.core.slots.slot import SlotOffer
from jobmaster.recovery import recovery_of
from taskexecutor import convert as of_task_executor
from taskexecutor.core import events as slot_events
from taskexecutor.executor import convert
from taskexecutor.executor.analyze import analyze
from taskexecutor.executor.exchange import Exchange
from taskexecutor.executor.operators.registry import create_operator
from taskexecutor.executor.slot_process import Host
from taskexecutor.executor.state import StateBackends
from taskexecutor.executor.task import StreamTask
from tests.job_master import SLOT_PROFILE
from tests.waiting import PATIENCE_S, eventually

WINDOW_BYTES = 4096  # so that an exchange is soon full


class NoSpark:
    session = None
    jvm_pid = 0

    def raising_spark_lost(self) -> AbstractContextManager[None]:
        return nullcontext()


class Slot:
    """The process in a slot; it is the link of its host."""

    def __init__(self, number: int, task_executor: str, said: Callable[[Slot, Any], None]) -> None:
        self.task_executor = TaskExecutorId(task_executor)
        self._said = said
        self._exchange = Exchange(
            host="127.0.0.1", window_bytes=WINDOW_BYTES, batch_rows=65536, partition_timeout_s=600
        )
        self.offer = SlotOffer(
            allocation_id=AllocationId(f"allocation {number}"),
            slot_index=number,
            profile=SLOT_PROFILE,
            executor_id=ExecutorId(f"executor {number}"),
            data_address=self._exchange.address,
        )
        engine: Any = NoSpark()
        link: Any = self
        self._host = Host(
            link=link,
            exchange=self._exchange,
            engine=engine,
            create_operator=create_operator,
            slot=number,
            location=f"slot {number}",
            metrics_interval_s=3600.0,
            heartbeat_interval_s=3600.0,
            heartbeat_timeout_s=3600.0,
        )
        self._host._state_backends = StateBackends(
            managed_bytes=8 << 20, directory=str(temporary.SHARED_MEMORY)
        )

    def send(self, message: executor_pb2.ExecutorToTaskExecutor) -> None:
        self._said(self, message)

    def hear(self, message: executor_pb2.TaskExecutorToExecutor) -> None:
        self._host._handle(message)

    @property
    def tasks(self) -> list[StreamTask]:
        return self._host._tasks.alive()

    def close(self) -> None:
        self._host._leave()
        self._exchange.close()


class JobStore:
    """The rows of complete checkpoints, and which JobMaster may add to them."""

    def __init__(self) -> None:
        self.epoch = 0
        self.checkpoints: list[CompleteCheckpoint] = []


class SmallCluster:
    """The JobMaster of one epoch, and its slots. The test's thread is the JobMaster's: its messages
    wait until `run_until`.
    """

    def __init__(
        self,
        env: Environment,
        store: JobStore,
        *,
        job_id: str = "",
        task_executors: int = 2,
        slots: int = 2,
    ) -> None:
        """A job with another JobMaster before this one has that one's `store` and `job_id`."""
        graph = env.job_graph("job")
        self.graph = replace(graph, job_id=JobId(job_id)) if job_id else graph
        self._conf = conf = Configuration.load(overrides=dict(graph.config))
        settings = settings_from(conf)
        assert settings.checkpoints is not None
        store.epoch += 1
        self.epoch, self.store = store.epoch, store
        message = JOB_GRAPH.encode(self.graph)
        recovery = recovery_of(self.epoch, self.graph, conf, store.checkpoints)
        self.restored = recovery.latest
        self.core = JobMasterCore(
            self.graph,
            settings,
            ids=IdSource(str(self.epoch).encode()),
            now=time.monotonic(),
            now_ms=int(time.time() * 1000),
            recovery=recovery,
        )
        self._messages = TaskExecutorMessages(
            message,
            self.graph.edges,
            self.epoch,
            dispatcher_address="",
            checkpoint_directory=settings.checkpoints.directory,
            unaligned_checkpoints=settings.checkpoints.unaligned,
            state_backend=settings.state_backend,
            inline_bytes=settings.checkpoints.inline_bytes,
        )
        none: Any = None
        self.files = CheckpointStore(
            settings.checkpoints.directory,
            self.graph.job_id,
            self.epoch,
            paths=recovery.paths,
            dispatcher="",
            platform=none,
            post=none,
        )
        self.answers: dict[str, commands.AnswerRequest] = {}
        self.stored: list[commands.StoreCheckpoint] = []
        # The messages that are `delayed`: those of coordinators, and notices about checkpoints.
        self.delays: tuple[type[commands.ToTaskExecutor], ...] = ()
        self.delayed: list[commands.ToTaskExecutor] = []
        self.events = 0  # handled
        self._inbox: queue.SimpleQueue[events.Event] = queue.SimpleQueue()
        self._numbers = iter(range(1000))
        self.slots: list[Slot] = []
        self._post(events.JobStarted())
        for number in range(task_executors):
            self.add_task_executor(f"{self.epoch}-{number}", slots)

    def add_task_executor(self, name: str, slots: int = 2) -> None:
        new = [Slot(next(self._numbers), name, self._hear) for _ in range(slots)]
        self.slots += new
        who = TaskExecutorId(name)
        self._post(
            events.TaskExecutorConnected(
                task_executor_id=who, connection=1, host="here", slots=(), tasks=()
            )
        )
        self._offer_slots()

    def run_until(self, condition: Callable[[], object], what: str) -> None:
        """Looks again after every event, and soon without one."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            deadline, now = self.core.next_deadline(), time.monotonic()
            assert now < end, f"after {PATIENCE_S:g} s still not: {what}; {self.problems}"
            if deadline is not None and deadline <= now:
                self._post(Tick())
                continue
            wait_s = 0.01 if deadline is None else min(0.01, deadline - now)
            with contextlib.suppress(queue.Empty):
                self._post(self._inbox.get(timeout=wait_s))

    def run_to_end(self) -> None:
        self.run_until(lambda: self.core.graph.status.terminal, "the job has ended")

    def take_checkpoint(self, request: str = "r", **options: Any) -> commands.AnswerRequest:
        self.begin_checkpoint(request, **options)
        self.run_until(lambda: request in self.answers, f"checkpoint {request} has come to its end")
        return self.answers.pop(request)

    def begin_checkpoint(self, request: str = "r", **options: Any) -> None:
        self._post(events.CheckpointRequested(request=request, **options))

    def deliver_delayed(self) -> None:
        delayed, self.delays, self.delayed = self.delayed, (), []
        for command in delayed:
            self._tell(command)

    def states(self, vertex_name: str) -> list[ExecutionState]:
        """Returns the states of the subtasks of the vertex whose name starts so."""
        return [e.state for e in self.core.graph.executions() if e.name.startswith(vertex_name)]

    def deployed(self, vertex_name: str) -> bool:
        """Returns whether subtasks of the vertex whose name starts so have run here."""
        executions = [e for e in self.core.graph.executions() if e.name.startswith(vertex_name)]
        return not any(execution.restored_finished for execution in executions)

    def tasks(self, vertex_name: str) -> list[StreamTask]:
        """Returns the running tasks of the vertex whose name starts so."""
        tasks = [task for slot in self.slots for task in slot.tasks]
        return [task for task in tasks if task.config.vertex.name.startswith(vertex_name)]

    def records_out(self, vertex_name: str) -> int:
        return sum(p.records_out for task in self.tasks(vertex_name) for p in task._partitions)

    def await_inbox(self, messages: int) -> None:
        """Waits until this many messages have arrived, unread."""
        eventually(lambda: self._inbox.qsize() >= messages, f"{messages} messages")

    @property
    def problems(self) -> list[str]:
        return [error.summary for error in self.core.exceptions.newest_first()]

    def lose(self, task_executor: TaskExecutorId) -> list[Slot]:
        """It is declared dead, but its slots live: returns them. Nothing reaches them any more."""
        lost = [slot for slot in self.slots if slot.task_executor == task_executor]
        self.slots = [slot for slot in self.slots if slot not in lost]
        self._post(events.TaskExecutorLost(task_executor_id=task_executor, cause="silent"))
        return lost

    def close(self) -> None:
        """Everybody dies."""
        for slot in self.slots:
            slot.close()
        self.slots.clear()

    # ---- inside

    def _offer_slots(self) -> None:
        """All that the job does not have: it takes what it needs."""
        for slot in self.slots:
            if slot.offer.allocation_id not in self.core.pool.slots:
                who = slot.task_executor
                self._inbox.put(events.SlotsOffered(task_executor_id=who, slots=(slot.offer,)))

    def _hear(self, slot: Slot, message: executor_pb2.ExecutorToTaskExecutor) -> None:
        """Handles a slot's message. Called from any thread."""
        relayed = of_task_executor.from_executor(slot.offer.executor_id, self.graph.job_id, message)
        if isinstance(relayed, slot_events.ProcessMessageReceived):
            self._inbox.put(from_task_executor(slot.task_executor, relayed.message))
            return
        assert isinstance(relayed, slot_events.TaskStatesReported), relayed
        changes = job_master_pb2.TaskExecutorToJobMaster(task_states=message.task_states)
        self._inbox.put(from_task_executor(slot.task_executor, changes))

    def _post(self, event: events.Event | Tick) -> None:
        self.events += 1
        effects = self.core.handle(event, time.monotonic())
        self.core.validate()
        for command in effects.commands:
            self._execute(command)

    def _execute(self, command: commands.Command) -> None:
        match command:
            case commands.DeclareRequirements():
                self._offer_slots()
            case commands.AnalyzeJob():
                self._analyze(command)
            case commands.SendOperatorMessage() | commands.NotifyCheckpoint() if isinstance(
                command, self.delays
            ):
                self.delayed.append(command)
            case (
                commands.DeployTasks()
                | commands.CancelTasks()
                | commands.SendOperatorMessage()
                | commands.TriggerCheckpoint()
                | commands.DrainTasks()
                | commands.NotifyCheckpoint()
            ):
                self._tell(command)
            case commands.StoreCheckpoint():
                self._inbox.put(self._store(command))
            case commands.DropCheckpoint(checkpoint_id=checkpoint_id):
                self.files._drop(checkpoint_id)
            case commands.DropAllCheckpoints():
                self.files._drop_all()
            case commands.DropCheckpointFiles(paths=paths):
                self.files._drop_files(paths)
            case commands.SweepSharedFiles():
                self.files._sweep_shared(command)
            case commands.AnswerRequest(request=request):
                self.answers[request] = command
            case commands.ReportStatus(status=status) if status.terminal:
                self._inbox.put(events.TerminalStatusStored())
            case (
                commands.AnswerSlots()
                | commands.FreeSlots()
                | commands.ReleasePartitions()
                | commands.DismissTaskExecutor()
                | commands.BeginResults()
                | commands.ReportStatus()
                | commands.ReportProgress()
                | commands.Log()
                | commands.Exit()
            ):
                pass
            case commands.ListPaths() | commands.SpoolChunk():
                raise AssertionError(f"nothing here does that: {command}")
            case _:
                assert_never(command)

    def _analyze(self, command: commands.AnalyzeJob) -> None:
        engine: Any = NoSpark()
        analyzed = convert.analyzed(self.graph.job_id, analyze(self.graph, engine)).analyze_result
        message = job_master_pb2.TaskExecutorToJobMaster(analyze_result=analyzed)
        self._inbox.put(from_task_executor(command.task_executor_id, message))

    def _tell(self, command: commands.ToTaskExecutor) -> None:
        slots = [s for s in self.slots if s.task_executor == command.task_executor_id]
        event = of_task_executor.from_job_master(self._messages.convert(command), self._conf)
        match event:
            case slot_events.TasksSubmitted():
                for part in event.parts:
                    for slot in slots:
                        if slot.offer.allocation_id == part.allocation_id:
                            slot.hear(part.message)
            case slot_events.TasksCancelled(attempt_ids=attempt_ids):
                cancel = executor_pb2.TaskExecutorToExecutor()
                cancel.cancel.attempt_ids.extend(attempt_ids)
                for slot in slots:
                    slot.hear(cancel)
            case slot_events.TaskMessageReceived():
                for slot in slots:
                    slot.hear(event.message)
            case _:
                raise AssertionError(f"the small cluster does not handle {event}")

    def _store(self, command: commands.StoreCheckpoint) -> events.Event:
        metadata = command.metadata
        path = self.files._write(command)
        if isinstance(path, StorageError):
            problem = str(path)
            return events.CheckpointNotStored(checkpoint_id=metadata.checkpoint_id, problem=problem)
        if self.epoch != self.store.epoch:
            return events.Superseded()
        row = CompleteCheckpoint(
            checkpoint_id=metadata.checkpoint_id,
            savepoint=metadata.savepoint,
            path=path,
            epoch=self.epoch,
        )
        kept = [c for c in self.store.checkpoints if c.checkpoint_id not in command.subsumed]
        self.store.checkpoints = [*kept, row]
        self.files._paths[metadata.checkpoint_id] = path
        if command.savepoint_path:
            self.files._drop_directory(metadata.checkpoint_id)
        if command.unsettled is not None:
            self.files._sweep(metadata.checkpoint_id, command.unsettled | self.files._paths.keys())
        self.stored.append(command)
        return events.CheckpointStored(checkpoint_id=metadata.checkpoint_id)


@contextlib.contextmanager
def small_cluster(env: Environment, store: JobStore, **options: Any) -> Iterator[SmallCluster]:
    cluster = SmallCluster(env, store, **options)
    try:
        yield cluster
    finally:
        cluster.close()
