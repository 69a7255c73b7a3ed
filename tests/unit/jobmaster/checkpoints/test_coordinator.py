"""The CheckpointCoordinator: when checkpoints start, how they end, which ones are retained."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import pytest

from firesteel.common.checkpoints.messages import Snapshot
from firesteel.common.checkpoints.metadata import CheckpointedOperator, CheckpointMetadata
from firesteel.common.checkpoints.state import InFlight, OperatorSnapshot, StateFile
from firesteel.common.ids import AttemptId, ResultId, VertexId
from firesteel.common.job_graph import Partitioner
from jobmaster.core.checkpoints.checkpoint import CheckpointState
from jobmaster.core.checkpoints.completed import CompletedCheckpoints
from jobmaster.core.checkpoints.coordinator import CheckpointCoordinator
from jobmaster.core.checkpoints.recovery import Recovery
from jobmaster.core.checkpoints.settings import CheckpointSettings
from jobmaster.core.commands import (
    AnswerRequest,
    Command,
    DrainTasks,
    DropCheckpoint,
    DropCheckpointFiles,
    NotifyCheckpoint,
    StoreCheckpoint,
    TriggerCheckpoint,
)
from jobmaster.core.coordinators.base import Coordinator
from jobmaster.core.coordinators.registry import Coordinators
from jobmaster.core.events import CheckpointRequested
from tests.job_master import job, operator_id, vertex
from tests.unit.jobmaster.checkpoints.graphs import finish, running, start_over, task

C = TypeVar("C")


def in_flight(attempt: AttemptId) -> InFlight:
    return InFlight(
        result_id=ResultId("input"),
        partitioner=Partitioner.HASH,
        file=StateFile(path=f"of-{attempt}", size_bytes=1, checksum=""),
        batches=(),
    )


def snapshot(attempt: AttemptId, *, union: bool = False) -> Snapshot:
    state = OperatorSnapshot(
        operator_id=operator_id("sink"),
        lists={"attempt": (attempt.encode(),)},
        in_flight=(in_flight(attempt),),
        union_lists={"u": (b"",)} if union else {},
    )
    return Snapshot(operators=(state,))


class Clock(Coordinator):
    """Its snapshot is the time."""

    now = 0.0

    def snapshot(self) -> float:
        return self.now


class Coordination:
    """A coordinator of a running source and sink, at `now`."""

    def __init__(self, **settings: float | bool | None) -> None:
        defaults: dict[str, float | bool | None] = {"interval_s": 10.0, "timeout_s": 60.0}
        self.clock = Clock()
        self.graph = running(job(vertex("source", 1), vertex("sink", 2)))
        self.completed = CompletedCheckpoints(self.graph, Recovery())
        self.coordinator = CheckpointCoordinator(
            CheckpointSettings(**{**defaults, **settings}),  # type: ignore[arg-type]
            self.graph,
            Coordinators({operator_id("source"): self.clock}),
            self.completed,
            Recovery(),
            lambda now: int(now * 1000),
        )
        self.sent: list[Command] = []
        self.do(self.coordinator.started(self.now))

    @property
    def now(self) -> float:
        return self.clock.now

    @now.setter
    def now(self, now: float) -> None:
        self.clock.now = now

    @property
    def latest(self) -> int | None:
        latest = self.completed.latest
        return None if latest is None else latest.checkpoint_id

    def do(self, commands: list[Command]) -> list[Command]:
        self.sent += commands
        return commands

    def wait(self) -> list[Command]:
        """Advances the time to the next deadline."""
        deadline = self.coordinator.next_deadline()
        assert deadline is not None
        self.now = max(self.now, deadline)
        return self.do(self.coordinator.tick(self.now))

    def begin(self) -> int:
        (trigger,) = of(self.wait(), TriggerCheckpoint)
        return trigger.checkpoint_id

    def acknowledge(
        self, checkpoint_id: int, *attempts: AttemptId, union: bool = False
    ) -> list[Command]:
        return [
            command
            for attempt in attempts or tuple(self.graph.attempts)
            for command in self.do(
                self.coordinator.acknowledged(
                    attempt, checkpoint_id, snapshot(attempt, union=union), self.now
                )
            )
        ]

    def complete(self) -> int:
        checkpoint_id = self.begin()
        self.acknowledge(checkpoint_id)
        self.do(self.coordinator.stored(checkpoint_id, self.now))
        return checkpoint_id

    def ask(
        self,
        request: str,
        *,
        stops: bool = False,
        drains: bool = False,
    ) -> list[Command]:
        """Requests a savepoint."""
        asked = CheckpointRequested(
            request=request, savepoint_path="/savepoint", stops=stops, drains=drains
        )
        return self.do(self.coordinator.request(asked, self.now))

    def decline(self, checkpoint_id: int, cause: str = "its disk is full") -> list[Command]:
        attempt_id = task(self.graph, "sink").attempt_id
        return self.do(self.coordinator.declined(attempt_id, checkpoint_id, cause, self.now))


def of(commands: list[Command], kind: type[C]) -> list[C]:
    return [command for command in commands if isinstance(command, kind)]


def test_a_checkpoint_completes_when_it_is_stored_and_then_notifies_tasks() -> None:
    c = Coordination()
    checkpoint_id = c.begin()
    source, *sinks = c.graph.attempts
    assert c.acknowledge(checkpoint_id, source, sinks[0]) == []
    (store,) = c.acknowledge(checkpoint_id, sinks[1])
    assert isinstance(store, StoreCheckpoint)
    source_part, sink_part = store.metadata.operators
    assert (source_part.coordinator, len(sink_part.subtasks)) == (10.0, 2)
    assert c.latest is None
    assert not c.coordinator.settled
    (notice,) = c.do(c.coordinator.stored(checkpoint_id, c.now))
    assert isinstance(notice, NotifyCheckpoint)
    assert notice.completed
    assert len(notice.attempt_ids) == 3
    assert c.latest == checkpoint_id
    assert c.coordinator.settled


def test_periodic_checkpoints_start_an_interval_apart_and_ids_increase() -> None:
    c = Coordination()
    assert [c.complete(), c.complete(), c.complete()] == [1, 2, 3]
    assert c.now == 30.0
    assert c.coordinator.next_id == 4


def test_there_is_a_minimum_pause_between_two_checkpoints() -> None:
    c = Coordination(min_pause_s=7.0)
    checkpoint_id = c.begin()
    c.now = 18.0
    c.acknowledge(checkpoint_id)
    c.do(c.coordinator.stored(checkpoint_id, c.now))
    c.begin()
    assert c.now == 25.0


def test_no_more_are_under_way_than_allowed() -> None:
    c = Coordination(max_concurrent=2)
    assert (c.begin(), c.begin()) == (1, 2)
    assert c.coordinator.next_deadline() == 70.0, "the timeout of the first"
    c.now = 45.0
    c.acknowledge(1)
    c.do(c.coordinator.stored(1, c.now))
    assert c.begin() == 3
    assert c.now == 45.0


def test_a_newer_one_that_is_complete_first_ends_the_older_one() -> None:
    c = Coordination(max_concurrent=2)
    c.begin()
    c.begin()
    source = next(iter(c.graph.attempts))
    c.acknowledge(1, source)
    c.acknowledge(2)
    ended = c.do(c.coordinator.stored(2, c.now))
    assert [(n.checkpoint_id, n.completed) for n in of(ended, NotifyCheckpoint)] == [
        (2, True),
        (1, False),
    ]
    (dropped,) = of(ended, DropCheckpointFiles)
    assert dropped.paths == (f"of-{source}",)
    late = c.acknowledge(1, *list(c.graph.attempts)[1:])
    assert {type(command) for command in late} == {DropCheckpointFiles}, (
        "nothing refers to its files"
    )
    assert not c.coordinator.failure


def test_checkpoints_are_stored_one_after_the_other() -> None:
    c = Coordination(max_concurrent=2)
    c.begin()
    c.begin()
    assert of(c.acknowledge(1), StoreCheckpoint)
    assert not c.acknowledge(2)
    (store,) = of(c.do(c.coordinator.stored(1, c.now)), StoreCheckpoint)
    assert store.metadata.checkpoint_id == 2


def test_a_limited_number_of_checkpoints_is_retained() -> None:
    c = Coordination(num_retained=2)
    for _ in range(4):
        c.complete()
    assert c.coordinator.retained == [3, 4]
    assert [d.checkpoint_id for d in of(c.sent, DropCheckpoint)] == [1, 2]


def test_one_that_waits_for_an_earlier_one_to_be_stored_does_not_expire() -> None:
    """The job store may be away for longer than a checkpoint may take."""
    c = Coordination(max_concurrent=2, timeout_s=15.0)
    first, second = c.begin(), c.begin()
    c.acknowledge(first)
    c.acknowledge(second)
    assert c.coordinator.next_deadline() is None
    assert c.do(c.coordinator.tick(c.now + 60.0)) == []
    stored = c.do(c.coordinator.stored(first, c.now + 60.0))
    assert [store.metadata.checkpoint_id for store in of(stored, StoreCheckpoint)] == [second]


def test_a_savepoint_is_answered_and_restored_and_never_dropped() -> None:
    c = Coordination()
    c.complete()
    (trigger,) = c.ask("mine")
    assert isinstance(trigger, TriggerCheckpoint)
    assert trigger.savepoint
    c.acknowledge(trigger.checkpoint_id)
    (answer,) = of(c.do(c.coordinator.stored(trigger.checkpoint_id, c.now)), AnswerRequest)
    assert (answer.request, answer.problem) == ("mine", "")
    assert c.coordinator.retained == [1]
    assert c.latest == trigger.checkpoint_id, "sinks have committed (invariant 9)"


def test_a_savepoint_is_known_longer_than_the_checkpoints_after_it() -> None:
    c = Coordination()
    (trigger,) = c.ask("mine")
    assert isinstance(trigger, TriggerCheckpoint)
    c.acknowledge(trigger.checkpoint_id)
    c.do(c.coordinator.stored(trigger.checkpoint_id, c.now))
    savepoint = c.coordinator.history[-1]
    later = [c.complete() for _ in range(12)]
    assert [each.checkpoint_id for each in c.coordinator.history] == later[-10:]
    assert list(c.coordinator.savepoints) == [savepoint]


def test_a_savepoint_waits_for_its_turn() -> None:
    c = Coordination()
    checkpoint_id = c.begin()
    assert c.ask("mine") == []
    c.acknowledge(checkpoint_id)
    (trigger,) = of(c.do(c.coordinator.stored(checkpoint_id, c.now)), TriggerCheckpoint)
    assert trigger.savepoint


def test_a_savepoint_is_always_aligned() -> None:
    c = Coordination(unaligned=True)
    (trigger,) = of(c.wait(), TriggerCheckpoint)
    assert trigger.unaligned
    c.acknowledge(trigger.checkpoint_id)
    c.do(c.coordinator.stored(trigger.checkpoint_id, c.now))
    (trigger,) = of(c.ask("mine"), TriggerCheckpoint)
    assert not trigger.unaligned


def test_every_trigger_except_a_savepoints_carries_the_alignment_timeout() -> None:
    for settings, periodic in (
        ({"unaligned": True}, (True, None, False)),
        ({"unaligned": True, "aligned_timeout_s": 0.25}, (False, 250, False)),
        ({"aligned_timeout_s": 0.25}, (False, None, False)),
        ({"at_least_once": True}, (False, None, True)),
    ):
        c = Coordination(max_concurrent=2, **settings)
        (first,) = of(c.wait(), TriggerCheckpoint)
        assert (first.unaligned, first.aligned_timeout_ms, first.at_least_once) == periodic
        (mine,) = of(c.ask("mine"), TriggerCheckpoint)
        assert (mine.unaligned, mine.aligned_timeout_ms, mine.at_least_once) == (False, None, False)


def test_a_declined_checkpoint_fails_and_its_files_are_deleted() -> None:
    c = Coordination(tolerable_failures=1)
    checkpoint_id = c.begin()
    c.acknowledge(checkpoint_id, task(c.graph, "source").attempt_id)
    notice, dropped = c.decline(checkpoint_id)
    assert isinstance(notice, NotifyCheckpoint)
    assert not notice.completed
    assert isinstance(dropped, DropCheckpointFiles)
    assert c.coordinator.history[-1].failure == "task sink (1/2)#0 declined: its disk is full"
    assert c.begin() == 2


def test_what_failed_ones_have_left_is_deleted_with_the_next_complete_one() -> None:
    """Also what an earlier master's have; but not of a savepoint that may yet be complete."""
    c = Coordination(tolerable_failures=1, max_concurrent=2)
    c.complete()
    (mine,) = of(c.ask("mine"), TriggerCheckpoint)
    c.complete()
    c.decline(c.begin())
    c.complete()
    c.complete()
    assert [(s.metadata.checkpoint_id, s.unsettled) for s in of(c.sent, StoreCheckpoint)] == [
        (1, {1}),
        (3, None),
        (5, {mine.checkpoint_id, 5}),
        (6, None),
    ]


def test_the_job_fails_when_more_fail_in_a_row_than_it_tolerates() -> None:
    c = Coordination(tolerable_failures=1)
    c.decline(c.begin())
    c.complete()
    c.decline(c.begin())
    assert not c.coordinator.failure, "never two in a row"
    c.decline(c.begin())
    assert (
        c.coordinator.failure == "checkpoint 4 failed: task sink (1/2)#0 declined: its disk is full"
    )


def test_a_failed_savepoint_does_not_fail_the_job() -> None:
    c = Coordination()
    (trigger,) = of(c.ask("mine"), TriggerCheckpoint)
    (answer,) = of(c.decline(trigger.checkpoint_id), AnswerRequest)
    assert "its disk is full" in answer.problem
    assert not c.coordinator.failure


def test_an_expired_checkpoint_names_the_tasks_that_did_not_answer() -> None:
    c = Coordination(interval_s=100.0)
    checkpoint_id = c.begin()
    c.acknowledge(checkpoint_id, task(c.graph, "source").attempt_id)
    c.wait()
    assert c.now == 160.0
    assert c.coordinator.failure == (
        "checkpoint 1 failed: not acknowledged within 60 s (execution.checkpointing.timeout)"
        " by sink (1/2)#0, sink (2/2)#0"
    )


def test_a_task_that_finishes_unacknowledged_ends_the_checkpoint_early() -> None:
    c = Coordination()
    checkpoint_id = c.begin()
    source = task(c.graph, "source")
    (notice,) = c.do(c.coordinator.finished(finish(source), c.now))
    assert isinstance(notice, NotifyCheckpoint)
    assert source.attempt_id not in notice.attempt_ids
    assert "finished before it acknowledged" in c.coordinator.history[-1].failure
    assert not c.coordinator.failure
    assert c.begin() == checkpoint_id + 1, "and the next one does without it"
    (trigger,) = of(c.sent[-1:], TriggerCheckpoint)
    assert [c.graph.attempts[a].name for a in trigger.attempt_ids] == [
        "sink (1/2)#0",
        "sink (2/2)#0",
    ]


def test_a_task_that_finishes_after_it_acknowledged_cancels_nothing() -> None:
    c = Coordination()
    checkpoint_id = c.begin()
    source = task(c.graph, "source")
    c.acknowledge(checkpoint_id, source.attempt_id)
    assert c.do(c.coordinator.finished(finish(source), c.now)) == []
    sinks = [task(c.graph, "sink", n).attempt_id for n in range(2)]
    assert of(c.acknowledge(checkpoint_id, *sinks), StoreCheckpoint)


def test_when_no_task_has_data_left_the_last_checkpoint_does_not_wait() -> None:
    c = Coordination(min_pause_s=5.0)
    running = c.begin()
    c.now += 1.0
    executions = list(c.graph.executions())
    for execution in executions:
        assert c.do(c.coordinator.data_ended(execution, c.now)) == [], "one is under way"
    c.acknowledge(running)
    c.do(c.coordinator.stored(running, c.now))
    assert c.coordinator.next_deadline() == c.now
    last = c.complete()
    assert (last, c.now) == (2, 11.0)
    assert c.coordinator.next_deadline() == 21.0, "only once: then the tasks end"
    c.do(c.coordinator.stopped("a task failed", c.now))
    executions = start_over(c.graph)
    c.do(c.coordinator.started(c.now))
    assert [c.do(c.coordinator.data_ended(e, c.now)) for e in executions[:-1]] == [[], []]
    assert c.coordinator.next_deadline() == 21.0, "the interval restarts after a restart"
    (trigger,) = c.do(c.coordinator.data_ended(executions[-1], c.now))
    assert isinstance(trigger, TriggerCheckpoint)


def test_surviving_tasks_do_not_report_their_end_of_data_twice() -> None:
    c = Coordination()
    executions = list(c.graph.executions())
    for execution in executions:
        c.do(c.coordinator.data_ended(execution, c.now))
    c.do(c.coordinator.stopped("a task failed", c.now))
    c.sent.clear()
    c.do(c.coordinator.started(c.now))
    assert of(c.sent, TriggerCheckpoint)


def test_a_job_whose_data_ended_before_all_of_its_tasks_ran_ends_at_once() -> None:
    c = Coordination()
    c.do(c.coordinator.stopped("a task failed", c.now))
    for execution in c.graph.executions():
        assert c.do(c.coordinator.data_ended(execution, c.now)) == []
    (trigger,) = c.do(c.coordinator.started(c.now))
    assert isinstance(trigger, TriggerCheckpoint)


def test_union_list_state_is_all_or_none() -> None:
    c = Coordination()
    finish(task(c.graph, "sink", 0))
    checkpoint_id = c.begin()
    c.acknowledge(checkpoint_id, task(c.graph, "source").attempt_id)
    c.acknowledge(
        checkpoint_id,
        task(c.graph, "sink", 1).attempt_id,
        union=True,
    )
    assert "sink has union list state" in c.coordinator.history[-1].failure
    assert not of(c.sent, StoreCheckpoint)


def test_union_list_state_lacks_no_part_of_a_task_that_ends_early() -> None:
    """Spec 001: its operators finish together, or the next checkpoint lacks its part."""
    c = Coordination()
    source, *sinks = c.graph.attempts
    for finished in ([True, False], [True, True]):
        checkpoint_id = c.begin()
        c.acknowledge(checkpoint_id, source)
        for attempt_id, ended in zip(sinks, finished, strict=True):
            state = replace(snapshot(attempt_id, union=True), operators_finished=ended)
            c.do(c.coordinator.acknowledged(attempt_id, checkpoint_id, state, c.now))
    assert "sink has union list state" in c.coordinator.history[-1].failure
    assert [s.metadata.checkpoint_id for s in of(c.sent, StoreCheckpoint)] == [2]


def test_when_the_job_stops_only_the_storing_of_a_checkpoint_continues() -> None:
    c = Coordination(max_concurrent=3)
    c.begin()
    c.begin()
    c.acknowledge(1)
    c.ask("mine")
    c.ask("another")
    stopped = c.do(c.coordinator.stopped("a task failed", c.now))
    assert {a.request: a.problem for a in of(stopped, AnswerRequest)} == {
        "mine": "a task failed",
        "another": "a task failed",
    }
    assert [p.checkpoint_id for p in c.coordinator.pending] == [1]
    assert c.coordinator.next_deadline() is None
    assert not c.coordinator.settled, "the latest checkpoint is not known yet"
    c.do(c.coordinator.stored(1, c.now))
    assert (c.coordinator.settled, c.latest) == (True, 1)
    (refusal,) = c.ask("late")
    assert isinstance(refusal, AnswerRequest)
    assert refusal.problem == "not all tasks of the job run; try again in a moment"
    c.now += 1
    c.do(c.coordinator.started(c.now))
    assert c.begin() == 4, "no id is used twice"


def test_one_that_cannot_be_stored_failed_and_its_files_are_deleted() -> None:
    c = Coordination(tolerable_failures=1)
    checkpoint_id = c.begin()
    c.acknowledge(checkpoint_id)
    ended = c.do(c.coordinator.not_stored(checkpoint_id, "the database is away", c.now))
    assert len(of(ended, DropCheckpointFiles)[0].paths) == 3
    assert not of(ended, NotifyCheckpoint)[0].completed
    assert c.latest is None
    assert c.coordinator.failed_in_a_row == 1
    assert c.complete() == 2


def test_a_repeated_acknowledgement_changes_nothing() -> None:
    c = Coordination()
    checkpoint_id = c.begin()
    source = task(c.graph, "source").attempt_id
    assert c.acknowledge(checkpoint_id, source, source) == []
    assert c.coordinator.stale == 1
    (pending,) = c.coordinator.pending
    assert pending.state is CheckpointState.COLLECTING


def test_files_of_a_complete_checkpoint_are_never_deleted_by_a_late_answer() -> None:
    c = Coordination()
    complete = c.complete()
    c.begin()
    for checkpoint_id in (0, complete, 7):
        assert c.acknowledge(checkpoint_id, task(c.graph, "source").attempt_id) == []


def test_no_periodic_checkpoint_while_none_is_possible() -> None:
    c = Coordination()
    for execution in list(c.graph.executions()):
        finish(execution)
    assert c.wait() == []
    (refusal,) = c.ask("mine")
    assert isinstance(refusal, AnswerRequest)
    assert refusal.problem == "all tasks have finished"
    assert c.coordinator.next_id == 1


def test_no_checkpoint_starts_after_a_stopping_savepoint_unless_it_fails() -> None:
    c = Coordination(max_concurrent=3)
    (trigger,) = of(c.ask("first", stops=True), TriggerCheckpoint)
    assert trigger.stops
    c.now += 20.0
    assert not of(c.do(c.coordinator.tick(c.now)), TriggerCheckpoint)
    (given_up,) = of(c.decline(trigger.checkpoint_id), NotifyCheckpoint)
    assert (given_up.completed, given_up.stops) == (False, True), "its sources continue"
    assert c.complete() == trigger.checkpoint_id + 1
    (trigger,) = of(c.ask("second", stops=True), TriggerCheckpoint)
    c.acknowledge(trigger.checkpoint_id)
    (notice,) = of(c.do(c.coordinator.stored(trigger.checkpoint_id, c.now)), NotifyCheckpoint)
    assert (notice.completed, notice.stops) == (True, True)
    assert c.coordinator.next_deadline() is None
    (again,) = of(c.do(c.coordinator.lost_messages(c.now)), NotifyCheckpoint)
    assert again == notice
    c.do(c.coordinator.stopped("a task has failed", c.now))
    c.do(c.coordinator.started(c.now))
    assert c.complete() == trigger.checkpoint_id + 1, "the job continues after the savepoint"


def drained(c: Coordination) -> int:
    """Runs up to the savepoint, which starts when no task has data left."""
    pending = c.begin()
    sent = c.ask("drain", stops=True, drains=True)
    assert [notice.checkpoint_id for notice in of(sent, NotifyCheckpoint)] == [pending]
    (drain,) = of(sent, DrainTasks)
    assert len(drain.attempt_ids) == 3
    c.now += 20.0
    assert not of(c.do(c.coordinator.tick(c.now)), TriggerCheckpoint), "tasks would end with it"
    (refused,) = of(c.ask("other"), AnswerRequest)
    assert refused.problem == "the job is being stopped"
    assert of(c.do(c.coordinator.lost_messages(c.now)), DrainTasks) == [drain]
    sent = []
    for execution in c.graph.executions():
        assert not of(sent, TriggerCheckpoint)
        sent = c.do(c.coordinator.data_ended(execution, c.now))
    (trigger,) = of(sent, TriggerCheckpoint)
    assert (trigger.savepoint, trigger.stops) == (True, False)
    return trigger.checkpoint_id


def test_a_drained_job_ends_with_a_savepoint_of_all_its_data() -> None:
    c = Coordination()
    savepoint = drained(c)
    c.acknowledge(savepoint)
    sent = c.do(c.coordinator.stored(savepoint, c.now))
    (answer,) = of(sent, AnswerRequest)
    assert (answer.request, answer.problem) == ("drain", "")
    assert of(sent, NotifyCheckpoint)[0].completed
    assert c.coordinator.next_deadline() is None, "no further checkpoint starts"


def test_a_drained_job_with_a_failed_savepoint_restores_its_checkpoint() -> None:
    c = Coordination(tolerable_failures=9)
    savepoint = drained(c)
    sent = c.decline(savepoint)
    assert "declined" in of(sent, AnswerRequest)[0].problem
    assert "with which the job was to end" in c.coordinator.failure


def test_a_drained_job_that_was_about_to_end_anyway_does_not_fail() -> None:
    """The last checkpoint was being stored when the stop with a savepoint was requested."""
    c = Coordination(interval_s=100.0)
    executions = list(c.graph.executions())
    for execution in executions:
        c.do(c.coordinator.data_ended(execution, c.now))
    c.acknowledge(1)
    c.ask("r", drains=True)
    assert of(c.do(c.coordinator.stored(1, c.now)), TriggerCheckpoint), "the savepoint"
    again = c.do(c.coordinator.finished(finish(executions[0]), c.now))
    assert of(again, TriggerCheckpoint), "of those that are left"
    assert not c.coordinator.failure
    for execution in executions[1:]:
        last = c.do(c.coordinator.finished(finish(execution), c.now))
        assert not c.coordinator.failure
    (answer,) = of(last, AnswerRequest)
    assert answer.problem == "all tasks have finished"


def test_a_job_that_fails_while_it_is_drained_continues() -> None:
    c = Coordination()
    c.ask("drain", stops=True, drains=True)
    (answer,) = of(c.do(c.coordinator.stopped("a task has failed", c.now)), AnswerRequest)
    assert (answer.request, answer.problem) == ("drain", "a task has failed")
    c.do(c.coordinator.started(c.now))
    c.complete()


def test_a_checkpoint_counts_the_rows_since_the_one_that_was_complete_before() -> None:
    c = Coordination()
    source = task(c.graph, "source")
    vertex_id = source.vertex.job_vertex.vertex.vertex_id

    def begin(read: int) -> int:
        """All tasks acknowledge it; the source has read `read` rows."""
        (trigger,) = c.ask("mine")
        assert isinstance(trigger, TriggerCheckpoint)
        for attempt in c.graph.attempts:
            rows = read if attempt == source.attempt_id else None
            part = replace(snapshot(attempt), records_read=rows)
            c.do(c.coordinator.acknowledged(attempt, trigger.checkpoint_id, part, c.now))
        return trigger.checkpoint_id

    def counted(checkpoint_id: int) -> dict[VertexId, int]:
        c.do(c.coordinator.stored(checkpoint_id, c.now))
        assert c.coordinator.last_completed is not None
        return c.coordinator.last_completed.records_read

    assert counted(begin(30)) == {vertex_id: 30}
    failed = begin(35)
    c.do(c.coordinator.not_stored(failed, "the disk is full", c.now))
    assert counted(begin(42)) == {vertex_id: 12}, "with those of the failed one"
    c.do(c.coordinator.adopted({}, (), c.now, asked=None, stopped=False))
    assert counted(begin(50)) == {}, "another master does not know what was counted"
    assert counted(begin(53)) == {vertex_id: 3}


@pytest.mark.parametrize(
    ("name", "uid", "taken_over"), [("sink", "", True), ("other", "", False), ("other", "u", True)]
)
def test_another_operator_does_not_get_an_event_time(name: str, uid: str, taken_over: bool) -> None:
    snapshot = OperatorSnapshot(operator_id=operator_id("sink"), watermark_us=5)
    operator = CheckpointedOperator(
        operator_id=operator_id("sink"),
        uid=uid,
        name=name,
        parallelism=2,
        max_parallelism=128,
        subtasks={0: snapshot, 1: snapshot},
    )
    graph = running(job(vertex("source", 1), vertex("sink", 2)))
    latest = CheckpointMetadata(
        checkpoint_id=1,
        job_id=graph.job_graph.job_id,
        job_name="",
        timestamp_ms=0,
        savepoint=True,
        operators=(operator,),
    )
    restored = CompletedCheckpoints(graph, Recovery(latest=latest)).restored()
    assert restored is not None
    found = restored.get(operator_id("sink"), [])
    assert [part.watermark_us for part in found] == ([5, 5] if taken_over else [])
