"""A JobMaster's core takes over the tasks of an earlier JobMaster: reported tasks continue, the
others restart, each split has one owner, and each checkpoint has one outcome.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, TypeAlias

import pytest

from firesteel._proto import dispatcher_pb2, tasks_pb2
from firesteel.common.checkpoints.messages import Snapshot, Stopping
from firesteel.common.checkpoints.metadata import CheckpointMetadata
from firesteel.common.checkpoints.state import CompleteCheckpoint
from firesteel.common.file_parts import ListedFile
from firesteel.common.ids import AttemptId, OperatorId, TaskExecutorId
from firesteel.common.job_graph import JobGraph, Partitioner, ResultPartitionId, ResultType
from firesteel.common.operator_messages import (
    ChunkAcknowledged,
    ChunkCollected,
    HeldSplit,
    Resend,
    SplitAssigned,
    SplitRequested,
)
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.common.units import MIB
from firesteel.errors import ErrorInfo
from jobmaster.convert import (
    LISTED_TASK,
    found_from_proto,
    found_to_proto,
    restart_history_from_json,
    restart_history_to_json,
    verdict_from_json,
)
from jobmaster.core import commands, events
from jobmaster.core.checkpoints.recovery import (
    ATTEMPTS_PER_MASTER,
    CHECKPOINTS_PER_MASTER,
    Recovery,
)
from jobmaster.core.checkpoints.settings import CheckpointSettings
from jobmaster.core.coordinators.splits import SplitEnumerator
from jobmaster.core.execution_graph import Execution
from jobmaster.core.failover.restart_strategy import FixedDelay, Verdict
from jobmaster.core.settings import JobSettings
from jobmaster.core.slots.slot import SlotOffer
from tests.job_master import World, job, operator_id, vertex

Coordinated: TypeAlias = tuple[str, dict[str, Any]]
RUNNING, FINISHED, FAILED = ExecutionState.RUNNING, ExecutionState.FINISHED, ExecutionState.FAILED
SOURCE, SINK = operator_id("source"), operator_id("sink")
GRACE_S = 30.0
_BOTH = (TaskExecutorId("tm-1"), TaskExecutorId("tm-2"))


SPLITS: Coordinated = ("sequence-source", {"start": 0, "end": 100, "split_rows": 10})
FILES: Coordinated = ("file-source", {"paths": ["/in/*"]})
WATCHED: Coordinated = ("file-source", {"paths": ["/in/*"], "watch_s": 1.0})


def as_stored(tasks: Iterable[events.ListedTask]) -> tuple[events.ListedTask, ...]:
    return tuple(LISTED_TASK.decode(LISTED_TASK.encode(task)) for task in tasks)


def graph(reads: Coordinated = SPLITS) -> JobGraph:
    """Two pipelines, each in a slot: a source of ten splits, and a sink that collects."""
    source = vertex("source", 2, coordinator=reads)
    sink = vertex("sink", 2, coordinator=("collect", {}))
    return job(source, sink, partitioner=Partitioner.HASH)


def settings(attempts: int = 0, *, checkpoints: bool = True) -> JobSettings:
    taken = CheckpointSettings(directory="/d", interval_s=10.0)
    return JobSettings(
        checkpoints=taken if checkpoints else None,
        restart=FixedDelay(attempts=attempts, delay_s=0.0),
        heartbeat_timeout_s=1000.0,
        adoption_timeout_s=GRACE_S,
    )


def test_the_dispatcher_has_the_analysis_before_a_task_is_deployed() -> None:
    """A later cancellation finds the job's tasks, and so can the next JobMaster."""
    world = World(graph(), settings())
    world.start()
    for name in ("tm-1", "tm-2"):
        world.give_slots(name, 1)
    sent = [type(command) for command in world.analyze()]
    assert sent.index(commands.ReportStatus) < sent.index(commands.DeployTasks)


class Handover:
    """The first JobMaster runs the job in a slot on each of two TaskExecutors, assigns a split to
    each source, and has stored a checkpoint. Then there is only what it leaves.
    """

    def __init__(
        self,
        *,
        attempts: int = 0,
        checkpoint: bool = True,
        enabled: bool = True,
        reads: Coordinated = SPLITS,
    ) -> None:
        """`checkpoint`: it has stored one; `enabled`: the job takes any."""
        self._settings = settings(attempts, checkpoints=enabled)
        self._graph = graph(reads)
        first = World(self._graph, settings(checkpoints=enabled))
        first.start()
        if reads is not SPLITS:
            listed(first, "abcdefghij")
        self.offers = {name: first.give_slots(name, 1) for name in ("tm-1", "tm-2")}
        first.analyze()
        first.report(first.executions(), ExecutionState.INITIALIZING, RUNNING)
        self.first = first
        self.splits: dict[str, list[int]] = {e.attempt_id: [] for e in first.executions("source")}
        for execution in first.executions("source"):
            self.assign(execution)
        self.recovery = Recovery(epoch=2)
        if checkpoint:
            self.checkpoint_id, latest = self.take_checkpoint()
            stored = CompleteCheckpoint(checkpoint_id=self.checkpoint_id, path="/p")
            self.recovery = replace(self.recovery, checkpoints=(stored,), latest=latest)
        self.tells()
        self.second = self._second()

    def tells(self) -> None:
        """Stores the first JobMaster's analysis: the splits of its sources and the started tasks."""
        self.found = found_from_proto(found_to_proto(self.first.core.found))
        self.listed = as_stored(self.first.core.listed)

    def _second(self) -> World:
        return World(self._graph, self._settings, self.recovery, seed=b"second")

    def has_collected(self, by_attempt: dict[AttemptId, int]) -> None:
        """So many chunks of the sink are kept."""
        self.recovery = replace(self.recovery, collected={SINK: by_attempt})
        self.second = self._second()

    def was_failing(self, restart_delay_s: float | None) -> None:
        """The first JobMaster was ending the tasks."""
        error = ErrorInfo(summary="the first JobMaster's")
        verdict = Verdict(error=error, delay_s=restart_delay_s)
        self.recovery = replace(self.recovery, verdict=verdict)
        self.second = self._second()

    def restores(self, path: str) -> None:
        """The latest checkpoint is a savepoint there."""
        self.recovery = replace(self.recovery, restored_from=path)
        self.second = self._second()

    def take_checkpoint(self) -> tuple[int, CheckpointMetadata]:
        first = self.first
        trigger = first.of(commands.TriggerCheckpoint, first.pass_time(10.0))[0]
        for execution in first.executions():
            first.post(
                events.CheckpointAcknowledged(
                    task_executor_id=execution.slot.task_executor_id,  # type: ignore[union-attr]
                    attempt_id=execution.attempt_id,
                    checkpoint_id=trigger.checkpoint_id,
                    snapshot=Snapshot(operators=()),
                )
            )
        stored = first.of(commands.StoreCheckpoint)[-1]
        first.post(events.CheckpointStored(checkpoint_id=trigger.checkpoint_id))
        return trigger.checkpoint_id, stored.metadata

    def assign(self, execution: Execution, *, arrives: bool = True) -> int:
        """The first JobMaster assigns a split; returns its place."""
        owned = self.first.core.coordinators.assigned(execution)
        sent = self.first.post(_request(execution, owned))
        message = self.first.one(commands.SendOperatorMessage, sent).message
        assert isinstance(message, SplitAssigned)
        if arrives:
            self.splits[execution.attempt_id].append(message.place)
        return message.place

    # ---- the second JobMaster

    def begin(self, *, cancels: bool = False) -> World:
        analysis = tuple(
            events.OperatorAnalysis(o.operator_id, b"schema", "plan")
            for v in graph().vertices
            for o in v.operators
        )
        self.second.post(
            events.JobStarted(
                adopts=analysis, found=self.found, listed=self.listed, cancels=cancels
            )
        )
        return self.second

    def connect(
        self,
        name: str,
        *,
        without: Iterable[Execution] = (),
        finished: Iterable[Execution] = (),
        state: ExecutionState = RUNNING,
    ) -> list[commands.Command]:
        """The TaskExecutor says what it holds."""
        held = [e for e in self.on(name) if e not in list(without)]
        done = {e.attempt_id: FINISHED for e in finished}
        return self.second.post(
            events.TaskExecutorConnected(
                task_executor_id=TaskExecutorId(name),
                connection=1,
                host="127.0.0.1",
                slots=tuple(self.offers[name]),
                tasks=tuple(
                    events.TaskUpdate(e.attempt_id, done.get(e.attempt_id, state)) for e in held
                ),
                places={
                    e.attempt_id: _place(e, self.offers[name][0])._replace(
                        splits={SOURCE: self.held(self.splits[e.attempt_id])}
                        if e.attempt_id in done
                        else {}
                    )
                    for e in held
                },
            )
        )

    def answer(
        self,
        *executions: Execution,
        open_checkpoints: Iterable[int] = (),
        stops_with: int = 0,
        stops: Stopping | None = None,
        data_ended: bool = False,
    ) -> list[commands.Command]:
        """The tasks say what they have."""
        sent: list[commands.Command] = []
        for execution in executions:
            splits = self.splits.get(execution.attempt_id)
            sent += self.second.post(
                events.TaskHeld(
                    task_executor_id=execution.slot.task_executor_id,  # type: ignore[union-attr]
                    attempt_id=execution.attempt_id,
                    splits={} if splits is None else {SOURCE: self.held(splits)},
                    open_checkpoints=tuple(open_checkpoints),
                    stops_with=stops_with or None,
                    data_ended=data_ended,
                    stops=stops,
                )
            )
        return sent

    def held(self, places: Iterable[int]) -> tuple[HeldSplit, ...]:
        source = self.first.core.coordinators.by_operator[SOURCE]
        assert isinstance(source, SplitEnumerator)
        return tuple(HeldSplit.of(place, source.split_json(place)) for place in places)

    def on(self, name: str) -> list[Execution]:
        found = self.first.executions()
        return [e for e in found if e.slot is not None and e.slot.task_executor_id == name]

    def adopt_all(self, **answer: object) -> list[commands.Command]:
        self.begin()
        self.connect("tm-1")
        self.connect("tm-2")
        return self.answer(*self.first.executions(), **answer)  # type: ignore[arg-type]


def listed(world: World, names: str, *, modified_ns: int = 1) -> list[commands.Command]:
    """There are files with these names; the last listing has ended."""
    files = tuple(ListedFile(f"/in/{name}", 4 * MIB, modified_ns) for name in names)
    return world.post(events.PathsListed(operator_id=SOURCE, files=files))


def _request(execution: Execution, received: int) -> events.OperatorMessageReceived:
    return events.OperatorMessageReceived(
        task_executor_id=execution.slot.task_executor_id,  # type: ignore[union-attr]
        operator_id=SOURCE,
        attempt_id=execution.attempt_id,
        message=SplitRequested(received=received),
    )


def _place(execution: Execution, slot: SlotOffer) -> events.TaskPlace:
    return events.TaskPlace(
        execution.vertex.job_vertex.vertex.vertex_id,
        execution.vertex.subtask,
        execution.attempt,
        slot.allocation_id,
    )


def _cause(world: World) -> str:
    latest = world.core.exceptions.latest
    assert latest is not None
    return latest.summary


def places(world: World, executions: Iterable[Execution], received: dict[str, int]) -> list[int]:
    """Returns the places of all splits that these sources still receive."""
    found = []
    for execution in executions:
        while True:
            sent = world.post(_request(execution, received[execution.attempt_id]))
            message = world.one(commands.SendOperatorMessage, sent).message
            if not isinstance(message, SplitAssigned):
                break
            received[execution.attempt_id] += 1
            found.append(message.place)
    return found


def test_running_tasks_continue() -> None:
    handover = Handover()
    handover.adopt_all()
    second, before = handover.second, handover.first.executions()
    assert second.core.graph.status is JobStatus.RUNNING
    statuses = [change.status for change in second.core.graph.timestamps]
    assert JobStatus.RECONCILING in statuses and JobStatus.RESTARTING not in statuses
    assert [e.attempt_id for e in second.executions()] == [e.attempt_id for e in before]
    assert not second.of(commands.DeployTasks) and not second.of(commands.CancelTasks)
    asked = [a for command in second.of(commands.AdoptTasks) for a in command.attempt_ids]
    assert sorted(asked) == sorted(e.attempt_id for e in before)
    assert second.core.pool.requirements()[0].count == 2, "the slots are the job's"
    assert second.core.restarts == 0


@pytest.mark.parametrize(("passed_s", "due_in_s"), [(14.0, 6.0), (25.0, 0.0), (5.0, 10.0)])
def test_the_next_checkpoint_comes_an_interval_after_the_latest(
    passed_s: float, due_in_s: float
) -> None:
    """That one was taken after 10 s, and the interval is as long. A clock may be behind."""
    handover = Handover()
    second = handover.second
    second.now += passed_s
    sent = handover.adopt_all()
    if due_in_s:
        assert not second.of(commands.TriggerCheckpoint, sent + second.pass_time(due_in_s - 0.1))
    assert second.of(commands.TriggerCheckpoint, sent + second.pass_time(0.1))


def test_no_split_is_assigned_before_all_holders_are_known() -> None:
    handover = Handover()
    second = handover.begin()
    handover.connect("tm-1")
    (source,) = (e for e in handover.on("tm-1") if e in handover.first.executions("source"))
    assert second.post(_request(source, 1)) == []


def test_each_split_has_one_owner_also_one_that_was_lost_on_its_way() -> None:
    handover = Handover()
    one, other = handover.first.executions("source")
    handover.assign(one)
    lost = handover.assign(other, arrives=False)
    handover.assign(one)
    handover.adopt_all()
    received = {attempt_id: len(found) for attempt_id, found in handover.splits.items()}
    rest = places(handover.second, [one, other], received)
    held = [place for found in handover.splits.values() for place in found]
    assert lost in rest
    assert sorted(held + rest) == list(range(10))


def test_missing_tasks_are_restarted_before_anything_else_is_deployed() -> None:
    handover = Handover(attempts=1)
    second = handover.begin()
    handover.connect("tm-1")
    handover.answer(*handover.on("tm-1"))
    assert second.core.graph.status is JobStatus.RECONCILING
    assert "2 of 4" in second.core.waiting_for(second.now)
    sent = second.pass_time(GRACE_S)
    assert second.core.graph.status in (JobStatus.FAILING, JobStatus.RESTARTING), (
        "both pipelines are one region"
    )
    assert "30 s" in _cause(second)
    cancelled = [
        a for command in second.of(commands.CancelTasks, sent) for a in command.attempt_ids
    ]
    assert sorted(cancelled) == sorted(e.attempt_id for e in handover.on("tm-1"))


def test_executors_unknown_to_the_resource_manager_are_not_awaited() -> None:
    handover = Handover(attempts=1)
    second = handover.begin()
    handover.connect("tm-1")
    handover.answer(*handover.on("tm-1"))
    second.post(events.SlotHoldersKnown(task_executor_ids=(TaskExecutorId("tm-1"),)))
    assert second.core.graph.status is not JobStatus.RECONCILING


def test_a_worker_that_dies_during_the_adoption_is_not_awaited() -> None:
    handover = Handover(attempts=1)
    second = handover.begin()
    holders = tuple(map(TaskExecutorId, ("tm-1", "tm-2")))
    second.post(events.SlotHoldersKnown(task_executor_ids=holders))
    handover.connect("tm-1")
    handover.answer(*handover.on("tm-1"))
    assert second.core.graph.status is JobStatus.RECONCILING
    second.post(events.TaskExecutorLost(task_executor_id=TaskExecutorId("tm-2"), cause="dead"))
    assert second.core.graph.status is not JobStatus.RECONCILING


def test_a_job_without_running_tasks_restores_without_using_an_attempt() -> None:
    handover = Handover(attempts=0)
    second = handover.begin()
    second.post(events.SlotHoldersKnown(task_executor_ids=()))
    assert second.core.graph.status is JobStatus.RESTARTING
    second.give_slots("tm-3", 2)
    assert second.core.graph.status is JobStatus.RUNNING
    deployed = [t for command in second.of(commands.DeployTasks) for t in command.tasks]
    assert all(task.restored is not None for task in deployed)
    assert {task.attempt for task in deployed} == {ATTEMPTS_PER_MASTER + 1}


def test_a_task_that_failed_without_a_job_master_is_restarted() -> None:
    handover = Handover(attempts=1)
    second = handover.begin()
    failed, *others = handover.first.executions()
    handover.connect("tm-1", state=RUNNING)
    handover.connect("tm-2", state=RUNNING)
    cause = ErrorInfo(summary="a user function raised")
    second.post(
        events.TaskStatesReported(
            task_executor_id=failed.slot.task_executor_id,  # type: ignore[union-attr]
            updates=(events.TaskUpdate(failed.attempt_id, FAILED, cause),),
        )
    )
    assert second.core.graph.status is JobStatus.RECONCILING, "the others are to be known first"
    handover.answer(*others)
    assert _cause(second) == "a user function raised"
    assert second.core.graph.status is JobStatus.FAILING


def test_attempts_that_follow_have_numbers_of_their_own_master() -> None:
    handover = Handover(attempts=1)
    handover.adopt_all()
    second = handover.second
    second.report(second.executions()[:1], FAILED)
    second.report(second.executions()[1:], ExecutionState.CANCELED)
    second.pass_time(0.0)
    assert {e.attempt for e in second.executions()} == {ATTEMPTS_PER_MASTER}


def test_adopted_and_lost_subtasks_restart_under_one_attempt_number() -> None:
    """A sink deletes what lower attempts of any subtask have left, which must not be those beside
    it.
    """
    handover = Handover(attempts=1)
    second = handover.begin()
    handover.connect("tm-1")
    handover.answer(*handover.on("tm-1"))
    second.post(events.SlotHoldersKnown(task_executor_ids=(TaskExecutorId("tm-1"),)))
    survivors = [e for e in second.executions() if not e.terminal]
    assert survivors
    second.report(survivors, ExecutionState.CANCELED)
    second.pass_time(0.0)
    assert {e.attempt for e in second.executions()} == {ATTEMPTS_PER_MASTER + 1}


def test_checkpoints_continue_with_unused_ids() -> None:
    handover = Handover()
    handover.adopt_all()
    triggers = handover.second.of(commands.TriggerCheckpoint, handover.second.pass_time(10.0))
    assert {trigger.checkpoint_id for trigger in triggers} == {
        handover.checkpoint_id + CHECKPOINTS_PER_MASTER + 1
    }


def test_a_stored_checkpoint_is_announced_and_any_other_is_aborted() -> None:
    handover = Handover()
    latest, begun = handover.checkpoint_id, handover.checkpoint_id + 1
    handover.begin()
    handover.connect("tm-1")
    handover.connect("tm-2")
    unheard, *others = handover.first.executions()
    sent = handover.answer(*others, open_checkpoints=(begun,))
    sent += handover.answer(unheard, open_checkpoints=(latest, begun))
    notices = {
        (notice.checkpoint_id, notice.completed, attempt_id)
        for notice in handover.second.of(commands.NotifyCheckpoint, sent)
        for attempt_id in notice.attempt_ids
    }
    everybody = [e.attempt_id for e in handover.first.executions()]
    assert notices == {(begun, False, a) for a in everybody} | {(latest, True, unheard.attempt_id)}


@pytest.mark.parametrize("stored", [True, False])
def test_a_stop_with_a_savepoint_is_finished_or_given_up(stored: bool) -> None:
    """All tasks end with a stored savepoint; otherwise the sources continue."""
    handover = Handover()
    savepoint = handover.checkpoint_id + (0 if stored else 1)
    sent = handover.adopt_all(open_checkpoints=(savepoint,), stops_with=savepoint)
    notices = handover.second.of(commands.NotifyCheckpoint, sent)
    assert {(n.checkpoint_id, n.completed, n.stops) for n in notices} == {
        (savepoint, stored, stored)
    }


def test_a_stop_that_was_under_way_is_requested_again() -> None:
    """The savepoint gets a new directory: the dead JobMaster may still write to the old one."""
    handover = Handover()
    path = "/savepoints/savepoint-abcdef-000000000000"
    begun = handover.checkpoint_id + 1
    sent = handover.adopt_all(
        open_checkpoints=(begun,), stops_with=begun, stops=Stopping(path, drains=False)
    )
    second = handover.second
    assert [n.completed for n in second.of(commands.NotifyCheckpoint, sent)] == [False, False]
    triggers = second.of(commands.TriggerCheckpoint, sent)
    assert len(triggers) == 2
    for trigger in triggers:
        assert trigger.savepoint and trigger.stops
        assert trigger.savepoint_path.startswith("/savepoints/savepoint-abcdef-")
        assert trigger.savepoint_path != path


@pytest.mark.parametrize("stored", [True, False])
def test_a_job_that_was_drained_does_not_end_without_its_savepoint(stored: bool) -> None:
    """The sources have ended, and all tasks wait: the next JobMaster takes the savepoint, unless
    it is stored already.
    """
    handover = Handover()
    path = "/savepoints/savepoint-abcdef-000000000000"
    if stored:
        handover.restores(path)
    sent = handover.adopt_all(stops=Stopping(path, drains=True), data_ended=True)
    second = handover.second
    triggers = second.of(commands.TriggerCheckpoint, sent)
    drains = second.of(commands.DrainTasks, sent)
    assert not [t for t in triggers if not t.savepoint], "tasks would end with a checkpoint"
    if stored:
        assert not drains and not triggers
    else:
        assert {a for drain in drains for a in drain.attempt_ids} == {
            e.attempt_id for e in second.executions()
        }
        assert len(triggers) == 2 and drains[0].savepoint_path != path


def collect(world: World, execution: Execution, sequence: int) -> list[commands.Command]:
    return world.post(
        events.OperatorMessageReceived(
            task_executor_id=execution.slot.task_executor_id,  # type: ignore[union-attr]
            operator_id=SINK,
            attempt_id=execution.attempt_id,
            message=ChunkCollected(sequence=sequence, ipc_stream=b"rows"),
        )
    )


def test_a_chunk_that_was_kept_and_not_acknowledged_is_not_kept_again() -> None:
    handover = Handover()
    one, other = handover.first.executions("sink")
    handover.has_collected({one.attempt_id: 3, AttemptId("an earlier one"): 7})
    handover.adopt_all()
    second = handover.second
    (acknowledged,) = second.of(commands.SendOperatorMessage, collect(second, one, 2))
    assert acknowledged.message == ChunkAcknowledged(sequence=2)
    for execution, sequence in ((one, 3), (other, 0)):
        (spooled,) = second.of(commands.SpoolChunk, collect(second, execution, sequence))
        assert (spooled.attempt_id, spooled.sequence) == (execution.attempt_id, sequence)
    assert not second.of(commands.BeginResults), "the rows follow the earlier ones"


def test_a_waiting_sink_gets_its_acknowledgement_before_it_answers() -> None:
    """Chunks that it sent ahead of lost ones are sent again after them."""
    handover = Handover()
    (one, _) = handover.first.executions("sink")
    handover.has_collected({one.attempt_id: 3})
    second = handover.begin()
    handover.connect("tm-1")
    assert collect(second, one, 3) == []
    sent = handover.connect("tm-2")
    resent = [c for c in second.of(commands.SendOperatorMessage, sent) if c.operator_id == SINK]
    assert {c.message for c in resent} == {Resend()} and len(resent) == 2
    assert collect(second, one, 4) == []
    assert second.of(commands.SpoolChunk, collect(second, one, 3))
    assert second.of(commands.SpoolChunk, collect(second, one, 4))
    assert second.core.graph.status is JobStatus.RECONCILING
    (refused,) = second.of(commands.SendOperatorMessage, collect(second, one, 6))
    assert "chunk 5 never arrived" in str(refused.message)


def test_without_a_checkpoint_rows_of_earlier_attempts_are_replaced() -> None:
    handover = Handover(checkpoint=False)
    handover.has_collected({AttemptId("an earlier one"): 7})
    handover.adopt_all()
    (begun,) = handover.second.of(commands.BeginResults)
    assert begun.operator_ids == (SINK,)


def cancelled(world: World, sent: list[commands.Command]) -> set[str]:
    return {a for command in world.of(commands.CancelTasks, sent) for a in command.attempt_ids}


@pytest.mark.parametrize("meanwhile", [True, False])
def test_a_job_is_canceled_once_no_task_is_known_to_run(meanwhile: bool) -> None:
    """The cancellation arrives during the takeover, or reached the first JobMaster."""
    handover = Handover()
    second = handover.begin(cancels=not meanwhile)
    for name in ("tm-1", "tm-2"):
        sent = handover.connect(name)
        if meanwhile and name == "tm-1":
            sent = second.post(events.CancelRequested())
        assert cancelled(second, sent) == {e.attempt_id for e in handover.on(name)}
        for execution in handover.on(name):
            assert second.core.graph.status is JobStatus.CANCELLING
            update = events.TaskUpdate(execution.attempt_id, ExecutionState.CANCELED)
            second.post(
                events.TaskStatesReported(task_executor_id=TaskExecutorId(name), updates=(update,))
            )
    assert second.core.graph.status is JobStatus.CANCELED
    assert not second.of(commands.DeployTasks)


def canceled(handover: Handover, name: str) -> None:
    """All tasks there have ended."""
    updates = tuple(
        events.TaskUpdate(e.attempt_id, ExecutionState.CANCELED) for e in handover.on(name)
    )
    handover.second.post(
        events.TaskStatesReported(task_executor_id=TaskExecutorId(name), updates=updates)
    )


def test_a_job_that_was_to_end_failed_ends_failed_of_the_same_cause() -> None:
    """Once all that its first JobMaster has left has ended."""
    handover = Handover(attempts=3)
    handover.was_failing(None)
    second = handover.begin()
    assert second.core.graph.status is JobStatus.FAILING
    for name in ("tm-1", "tm-2"):
        sent = handover.connect(name)
        assert cancelled(second, sent) == {e.attempt_id for e in handover.on(name)}
        assert second.core.graph.status is JobStatus.FAILING
        canceled(handover, name)
    assert second.core.graph.status is JobStatus.FAILED
    assert _cause(second) == "the first JobMaster's"
    assert not second.of(commands.DeployTasks)


def test_a_job_that_was_to_be_restarted_is_and_no_attempt_is_used_up_twice() -> None:
    handover = Handover(attempts=1)
    handover.was_failing(5.0)
    second = handover.begin()
    for name in ("tm-1", "tm-2"):
        handover.connect(name)
        canceled(handover, name)
    assert second.core.graph.status is JobStatus.RESTARTING
    assert "in 5 s" in second.core.waiting_for(second.now)
    second.pass_time(5.0)
    assert second.core.job.restart_strategy.history.used == 0, "by this JobMaster"
    assert second.core.graph.status is JobStatus.RUNNING
    deployed = [task for command in second.of(commands.DeployTasks) for task in command.tasks]
    assert len(deployed) == 4 and handover.checkpoint_id
    assert {task.attempt for task in deployed} == {ATTEMPTS_PER_MASTER}


def test_a_job_that_was_to_end_failed_before_it_ran_ends_failed() -> None:
    handover = Handover(attempts=3)
    handover.was_failing(None)
    handover.second.start()
    assert handover.second.core.graph.status is JobStatus.FAILED


def test_what_a_failing_job_is_cancelled_for_is_its_user() -> None:
    handover = Handover()
    handover.was_failing(None)
    second = handover.begin()
    second.post(events.CancelRequested())
    second.pass_time(GRACE_S)
    assert second.core.graph.status is JobStatus.CANCELED


@pytest.mark.parametrize("attempts", [0, 1])
def test_the_verdict_on_a_failure_is_reported_while_the_job_is_failing(attempts: int) -> None:
    handover = Handover()
    world = World(graph(), settings(attempts))
    world.run(("tm-1", 2))
    assert world.core.verdict is None
    (one, *_) = world.executions("sink")
    world.report([one], FAILED, error=ErrorInfo(summary="a bug"))
    verdict = world.core.verdict
    assert verdict is not None and verdict.error is not None
    assert verdict.error.summary == "a bug"
    assert verdict.delay_s == (0.0 if attempts else None)
    stored = restart_history_to_json(world.core.job.restart_strategy.history, verdict)
    assert verdict_from_json(stored) == verdict
    assert restart_history_from_json(stored).used == attempts
    assert verdict_from_json("") is None and handover.recovery.verdict is None


def test_a_cancelled_job_does_not_wait_for_unreported_tasks() -> None:
    handover = Handover()
    second = handover.begin(cancels=True)
    second.pass_time(GRACE_S)
    assert second.core.graph.status is JobStatus.CANCELED


def test_a_job_ends_if_all_tasks_finished_without_a_job_master() -> None:
    handover = Handover()
    second = handover.begin()
    handover.connect("tm-1", state=FINISHED)
    handover.connect("tm-2", state=FINISHED)
    assert second.core.graph.status is JobStatus.FINISHED


def test_slots_of_tasks_that_are_not_adopted_are_given_back_first() -> None:
    """A JobMaster that restarts the job does not run two attempts in one process."""
    handover = Handover()
    second = handover.second
    second.start()
    sent = handover.connect("tm-1")
    answers = second.of(commands.AnswerSlots, sent)
    assert [a.rejected for a in answers] == [(handover.offers["tm-1"][0].allocation_id,)]


def test_without_checkpoints_the_tasks_tell_all() -> None:
    handover = Handover(checkpoint=False, enabled=False)
    assert handover.first.core.adoptable
    one, other = handover.first.executions("source")
    lost = handover.assign(other, arrives=False)
    handover.assign(one)
    handover.adopt_all()
    second = handover.second
    assert second.core.graph.status is JobStatus.RUNNING
    assert not second.of(commands.DeployTasks)
    received = {attempt_id: len(found) for attempt_id, found in handover.splits.items()}
    rest = places(second, [one, other], received)
    held = [place for found in handover.splits.values() for place in found]
    assert lost in rest and sorted(held + rest) == list(range(10))


@pytest.mark.parametrize("enabled", [True, False])
def test_files_are_those_that_the_first_job_master_has_found(enabled: bool) -> None:
    """This also holds without a checkpoint: they are stored with the analysis."""
    handover = Handover(checkpoint=False, enabled=enabled, reads=FILES)
    assert handover.first.core.adoptable
    handover.adopt_all()
    second, received = handover.second, {a: len(s) for a, s in handover.splits.items()}
    assert not second.of(commands.ListPaths) and not second.of(commands.DeployTasks)
    rest = places(second, handover.first.executions("source"), received)
    held = [place for found in handover.splits.values() for place in found]
    assert sorted(held + rest) == list(range(10))
    source, known = (
        world.core.coordinators.by_operator[SOURCE] for world in (second, handover.first)
    )
    assert isinstance(source, SplitEnumerator) and isinstance(known, SplitEnumerator)
    assert [*map(source.split_json, range(10))] == [*map(known.split_json, range(10))]


def test_files_listed_since_the_checkpoint_are_reported_and_adopted() -> None:
    handover = Handover(reads=WATCHED)
    (told,) = handover.first.of(commands.ReportStatus, listed(handover.first, "abcdefghijk"))
    assert told.status is JobStatus.RUNNING
    assert not handover.first.of(commands.ReportStatus, listed(handover.first, "abcdefghijk"))
    handover.tells()
    assert [len(of["files"]) for of in handover.found.values()] == [1], "the others are stored"
    one, other = handover.first.executions("source")
    while handover.assign(one) < 10:
        pass
    handover.adopt_all()
    second = handover.second
    assert not second.of(commands.DeployTasks)
    assert second.of(commands.ListPaths), "for files that come later"
    listed(second, "abcdefghijkl")
    received = {attempt_id: len(found) for attempt_id, found in handover.splits.items()}
    sent = second.post(_request(other, received[other.attempt_id]))
    message = second.one(commands.SendOperatorMessage, sent).message
    assert isinstance(message, SplitAssigned) and "/in/l" in message.split_json


@pytest.mark.parametrize("stored", ["nothing", "another file in its place", "the same, changed"])
def test_a_task_that_reads_a_file_that_is_not_stored_is_restarted(stored: str) -> None:
    """With its region, and another one is given the file, once that is found."""
    handover = Handover(attempts=1, reads=WATCHED)
    listed(handover.first, "abcdefghijk")
    (one, _) = handover.first.executions("source")
    while handover.assign(one) < 10:
        pass
    if stored != "nothing":
        handover.tells()
        (source,) = handover.found.values()
        ((path, size, modified_ns),) = source["files"]
        source["files"] = (
            [["/in/other", size, modified_ns]]
            if stored == "another file in its place"
            else [[path, size, modified_ns + 1]]
        )
    handover.adopt_all()
    assert "split 10 that is not stored" in _cause(handover.second)
    assert cancelled(handover.second, handover.second.sent)


def test_a_source_without_stored_files_starts_from_the_checkpoint_or_fresh() -> None:
    handover = Handover(checkpoint=False, reads=FILES)
    handover.found = {}
    second = handover.begin()
    assert second.core.graph.status is JobStatus.RUNNING
    assert second.of(commands.ListPaths) and not second.of(commands.AdoptTasks)


@pytest.mark.parametrize("attempts", [0, 1])
def test_without_checkpoints_a_job_of_which_nothing_is_found_has_failed(attempts: int) -> None:
    """It restarts only if its restart strategy allows it."""
    handover = Handover(checkpoint=False, enabled=False, attempts=attempts)
    second = handover.begin()
    second.post(events.SlotHoldersKnown(task_executor_ids=()))
    second.pass_time(0.0)
    assert "no TaskExecutor runs the task" in _cause(second)
    assert second.core.graph.status is (JobStatus.RESTARTING if attempts else JobStatus.FAILED)


def test_without_checkpoints_a_finished_source_reports_its_splits() -> None:
    handover = Handover(checkpoint=False, enabled=False)
    second = handover.begin()
    second.post(events.SlotHoldersKnown(task_executor_ids=_BOTH))
    done, *others = handover.first.executions()
    handover.connect("tm-1", finished=[done])
    handover.connect("tm-2", finished=[done])
    handover.answer(*others)
    assert second.core.graph.status is JobStatus.RUNNING and not second.core.restarts
    assert second.executions()[0].state is FINISHED
    (other,) = (e for e in others if e in handover.first.executions("source"))
    held = [place for found in handover.splits.values() for place in found]
    rest = places(second, [other], {other.attempt_id: 1})
    assert sorted(held + rest) == list(range(10))


class BatchHandover:
    """Two sources of splits → BLOCKING → two tasks, with a slot each: the first source has finished
    on tm-1, and the other runs on tm-2.
    """

    def __init__(self, attempts: int = 0, *, collects: bool = True) -> None:
        one_way = replace(graph().edges[0], result_type=ResultType.BLOCKING)
        source, sink = graph().vertices
        sink = sink if collects else vertex("sink", 2)
        self.graph = replace(graph(), vertices=(source, sink), edges=(one_way,), batch=True)
        self.settings = settings(attempts, checkpoints=False)
        self.first = first = World(self.graph, self.settings)
        first.start()
        self.offers = {name: first.give_slots(name, 1) for name in ("tm-1", "tm-2")}
        first.analyze()
        self.sources = first.executions("source")
        first.report(self.sources, RUNNING)
        self.read: dict[str, list[int]] = {}
        for source in self.sources:
            self.read[source.attempt_id] = places_of_one(first, source, 3)
        self.finish(self.sources[0])

    def finish(self, *executions: Execution) -> None:
        self.first.report(executions, FINISHED)

    def run_the_others(self) -> list[Execution]:
        self.finish(self.sources[1])
        others = self.first.executions("sink")
        self.first.report(others, RUNNING)
        return others

    def take_over(
        self,
        *names: str,
        results: Iterable[Execution] = (),
        running: Iterable[Execution] = (),
        listed: Iterable[events.ListedTask] | None = None,
        not_repeatable: Collection[OperatorId] = (),
    ) -> World:
        """The TaskExecutors with these names live, and keep these results."""
        second = World(self.graph, self.settings, Recovery(epoch=2), seed=b"second")
        analysis = tuple(
            events.OperatorAnalysis(
                o.operator_id, b"schema", "plan", repeatable=o.operator_id not in not_repeatable
            )
            for v in self.graph.vertices
            for o in v.operators
        )
        known = self.first.core.listed if listed is None else listed
        second.post(
            events.JobStarted(
                adopts=analysis,
                found=found_from_proto(found_to_proto(self.first.core.found)),
                listed=as_stored(known),
            )
        )
        second.post(events.SlotHoldersKnown(task_executor_ids=tuple(map(TaskExecutorId, names))))
        for name in names:
            held = [e for e in running if _is_on(e, name)]
            second.post(
                events.TaskExecutorConnected(
                    task_executor_id=TaskExecutorId(name),
                    connection=1,
                    host="127.0.0.1",
                    slots=tuple(self.offers[name]) if held else (),
                    tasks=tuple(events.TaskUpdate(e.attempt_id, RUNNING) for e in held),
                    places={e.attempt_id: _place(e, self.offers[name][0]) for e in held},
                    data_address=f"{name}:9",
                    partitions=tuple(
                        ResultPartitionId(
                            self.graph.edges[0].result_id, e.vertex.subtask, e.attempt
                        )
                        for e in results
                        if _is_on(e, name)
                    ),
                )
            )
        for execution in running:
            if execution.attempt_id in self.read:
                source = self.first.core.coordinators.by_operator[SOURCE]
                assert isinstance(source, SplitEnumerator)
                read = self.read[execution.attempt_id]
                held_splits = tuple(HeldSplit.of(n, source.split_json(n)) for n in read)
                second.post(
                    events.TaskHeld(
                        task_executor_id=execution.slot.task_executor_id,  # type: ignore[union-attr]
                        attempt_id=execution.attempt_id,
                        splits={SOURCE: held_splits},
                        open_checkpoints=(),
                        stops_with=None,
                        data_ended=False,
                    )
                )
        return second


def places_of_one(world: World, execution: Execution, count: int) -> list[int]:
    found = []
    for received in range(count):
        sent = world.post(_request(execution, received))
        message = world.one(commands.SendOperatorMessage, sent).message
        assert isinstance(message, SplitAssigned)
        found.append(message.place)
    return found


def _is_on(execution: Execution, name: str) -> bool:
    return execution.slot is not None and execution.slot.task_executor_id == name


def test_a_batch_continues_with_finished_running_and_waiting_tasks() -> None:
    handover = BatchHandover()
    done, goes_on = handover.sources
    second = handover.take_over("tm-1", "tm-2", results=[done], running=[goes_on])
    assert second.core.graph.status is JobStatus.RUNNING
    assert [e.attempt_id for e in second.executions("source")] == [
        e.attempt_id for e in handover.sources
    ]
    assert not second.of(commands.DeployTasks), "its consumers wait for the other source"
    rest = places(second, [goes_on], {goes_on.attempt_id: 3})
    assert sorted(sum(handover.read.values(), rest)) == list(range(10))
    second.report(second.executions("source")[1:], FINISHED)
    for name in ("tm-1", "tm-2"):
        second.give_slots(name, 1)
    deployed = [task for d in second.of(commands.DeployTasks) for task in d.tasks]
    assert sorted(task.subtask for task in deployed) == [0, 1]
    locations = second.of(commands.DeployTasks)[0].locations[0]
    assert [locations.addresses[n] for n in locations.address_index] == ["tm-1:9", "tm-2:9"]
    assert not second.core.restarts


def test_the_next_job_master_reproduces_a_lost_result_from_the_same_splits() -> None:
    handover = BatchHandover(attempts=1)
    done, goes_on = handover.sources
    second = handover.take_over("tm-2", running=[goes_on])
    assert "TaskExecutor runs the task" in _cause(second), "tm-1 is gone, and an attempt is used"
    again, other = second.executions("source")
    assert again.attempt >= ATTEMPTS_PER_MASTER and other.attempt_id == goes_on.attempt_id
    second.give_slots("tm-2", 1)
    assert places(second, [again], {again.attempt_id: 0}) == handover.read[done.attempt_id]


def test_a_source_repeats_its_splits_under_the_next_job_master() -> None:
    """It finished, its result was lost, and its next attempt had started when the first died."""
    handover = BatchHandover(attempts=1)
    done, goes_on = handover.sources
    had = handover.read[done.attempt_id]
    first = handover.first
    first.post(events.TaskExecutorLost(task_executor_id=TaskExecutorId("tm-1"), cause="killed"))
    handover.offers["tm-1"] = first.give_slots("tm-1", 1)
    again = first.executions("source")[0]
    first.report([again], RUNNING)
    handover.read[again.attempt_id] = places_of_one(first, again, 1)
    second = handover.take_over("tm-1", "tm-2", running=[again, goes_on])
    assert not second.core.restarts
    assert places(second, [again], {again.attempt_id: 1}) == had[1:]
    rest = places(second, [goes_on], {goes_on.attempt_id: 3})
    assert sorted([*had, *handover.read[goes_on.attempt_id], *rest]) == list(range(10))


def test_readers_of_rows_that_may_be_reassigned_restart() -> None:
    """The start of the second source is unknown: it may read other splits."""
    handover = BatchHandover(attempts=1)
    readers = handover.run_the_others()
    listed = [
        task
        for task in handover.first.core.listed
        if task.attempt_id != handover.sources[1].attempt_id
    ]
    second = handover.take_over(
        "tm-1", "tm-2", results=handover.sources, running=readers, listed=listed
    )
    cancelled = [a for c in second.of(commands.CancelTasks) for a in c.attempt_ids]
    assert sorted(cancelled) == sorted(e.attempt_id for e in readers)
    assert second.executions("source")[0].attempt_id == handover.sources[0].attempt_id


@pytest.mark.parametrize("not_repeatable", [(), (SOURCE,)], ids=["repeatable", "not repeatable"])
def test_the_next_job_master_knows_which_tasks_are_not_repeatable(
    not_repeatable: tuple[OperatorId, ...],
) -> None:
    """A reader has finished on tm-1, which is gone with the result of the first source."""
    handover = BatchHandover(attempts=1, collects=False)
    done, goes_on = handover.run_the_others()
    handover.finish(done)
    second = handover.take_over(
        "tm-2", results=handover.sources[1:], running=[goes_on], not_repeatable=not_repeatable
    )
    second.report(second.executions("sink")[1:], ExecutionState.CANCELED)
    again = [e.attempt >= ATTEMPTS_PER_MASTER for e in second.executions("source")]
    assert again == [True, False]
    reads_again = [e.attempt >= ATTEMPTS_PER_MASTER for e in second.executions("sink")]
    assert reads_again == [bool(not_repeatable), True]


def test_the_state_that_an_earlier_release_has_left_is_a_handover() -> None:
    left = tasks_pb2.AnalyzeResult(
        job_id="a" * 32, schemas=[tasks_pb2.OperatorSchema(operator_id="o", schema=b"s")]
    ).SerializeToString()
    left += dispatcher_pb2.Handover(  # as AnalyzeResult had them
        discovered={"o": b"files"}, tasks=[tasks_pb2.ListedTask(attempt_id="t")]
    ).SerializeToString()
    read = dispatcher_pb2.Handover.FromString(left)
    assert [operator.schema for operator in read.operators] == [b"s"]
    assert dict(read.discovered) == {"o": b"files"}
    assert [task.attempt_id for task in read.tasks] == ["t"]
