"""Checkpoints of a job as its core takes them: with its phases, its restarts and its end."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from firesteel._proto import job_graph_pb2
from firesteel.common.checkpoints.descriptions import (
    StateDescription,
    StateDescriptions,
    StateKind,
)
from firesteel.common.checkpoints.messages import (
    CheckpointAcknowledged,
    CheckpointAnswer,
    DataEnded,
    Snapshot,
)
from firesteel.common.checkpoints.metadata import CheckpointMetadata, decode, encode
from firesteel.common.checkpoints.state import (
    CompleteCheckpoint,
    KeyedHandle,
    OperatorSnapshot,
    StateFile,
)
from firesteel.common.config import Configuration, ConfigurationError
from firesteel.common.ids import AttemptId, ExecutorId, JobId, TaskExecutorId
from firesteel.common.job_graph import Partitioner
from firesteel.common.operator_messages import SplitRequested
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.errors import ErrorInfo
from jobmaster.checkpoint_details import checkpoint_details, checkpoint_metrics
from jobmaster.convert import TaskExecutorMessages, from_task_executor
from jobmaster.core import commands, events
from jobmaster.core.checkpoints.recovery import (
    ATTEMPTS_PER_MASTER,
    CHECKPOINTS_PER_MASTER,
    Recovery,
)
from jobmaster.core.checkpoints.settings import CheckpointSettings, Retention
from jobmaster.core.execution_graph import Execution
from jobmaster.core.failover.restart_strategy import FixedDelay
from jobmaster.core.settings import JobSettings, settings_from
from jobmaster.details import job_details
from jobmaster.job_metrics import samples
from taskexecutor.convert import from_executor
from taskexecutor.core.events import ProcessMessageReceived
from taskexecutor.executor.convert import BARRIER, checkpoint_answer
from tests.job_master import World, job, offer, operator_id, vertex

RUNNING, FAILED, FINISHED = ExecutionState.RUNNING, ExecutionState.FAILED, ExecutionState.FINISHED


def world(recovery: Recovery | None = None, **settings: object) -> World:
    """A source of ten splits and a sink, in one slot, with a checkpoint every ten seconds."""
    made = analyzed(recovery, **settings)
    made.report(made.executions(), ExecutionState.INITIALIZING, RUNNING)
    return made


def analyzed(recovery: Recovery | None = None, *, end: int = 100, **settings: object) -> World:
    """The same up to its analysis."""
    sequence = {"start": 0, "end": end, "split_rows": 10}
    graph = job(vertex("source", 1, coordinator=("sequence-source", sequence)), vertex("sink", 1))
    checkpoints = CheckpointSettings(directory="/d", interval_s=10.0, **settings)  # type: ignore[arg-type]
    made = World(
        graph,
        JobSettings(
            checkpoints=checkpoints,
            restart=FixedDelay(attempts=9, delay_s=0.0),
            heartbeat_timeout_s=1000.0,
        ),
        recovery,
    )
    made.start()
    made.give_slots("tm", 1)
    made.analyze()
    return made


def snapshot(vertex_name: str, text: str) -> Snapshot:
    state = OperatorSnapshot(operator_id=operator_id(vertex_name), lists={"l": (text.encode(),)})
    return Snapshot(operators=(state,))


def acknowledge(
    made: World, execution: Execution, checkpoint_id: int, state: Snapshot | None = None
) -> list[commands.Command]:
    assert execution.slot is not None
    name = execution.vertex.job_vertex.vertex.name
    return made.post(
        events.CheckpointAcknowledged(
            task_executor_id=execution.slot.task_executor_id,
            attempt_id=execution.attempt_id,
            checkpoint_id=checkpoint_id,
            snapshot=state or snapshot(name, f"{name} {checkpoint_id}"),
        )
    )


def decline(made: World, execution: Execution, checkpoint_id: int) -> None:
    assert execution.slot is not None
    made.post(
        events.CheckpointDeclined(
            task_executor_id=execution.slot.task_executor_id,
            attempt_id=execution.attempt_id,
            checkpoint_id=checkpoint_id,
            cause="the disk is full",
        )
    )


def ask_split(made: World, received: int) -> list[commands.Command]:
    (source,) = made.executions("source")
    assert source.slot is not None
    return made.post(
        events.OperatorMessageReceived(
            task_executor_id=source.slot.task_executor_id,
            operator_id=operator_id("source"),
            attempt_id=source.attempt_id,
            message=SplitRequested(received=received),
        )
    )


def complete(made: World) -> int:
    return complete_of(made)


def complete_of(made: World, vertex_name: str = "") -> int:
    """A checkpoint in which the tasks of this vertex take part; without a name, all."""
    trigger = made.one(commands.TriggerCheckpoint, made.pass_time(10.0))
    for execution in made.executions(vertex_name):
        acknowledge(made, execution, trigger.checkpoint_id)
    store = made.of(commands.StoreCheckpoint)[-1]
    assert store.metadata.checkpoint_id == trigger.checkpoint_id
    made.post(events.CheckpointStored(checkpoint_id=trigger.checkpoint_id))
    return trigger.checkpoint_id


def fail(made: World, vertex_name: str = "sink") -> None:
    error = ErrorInfo(summary="RuntimeError: once")
    made.report(made.executions(vertex_name), FAILED, error=error)
    others = [e for e in made.executions() if e.state is ExecutionState.CANCELING]
    made.report(others, ExecutionState.CANCELED)


def test_a_job_that_fails_resumes_from_its_latest_complete_checkpoint() -> None:
    made = world()
    ask_split(made, 0)
    ask_split(made, 1)
    checkpoint_id = complete(made)
    ask_split(made, 2)
    made.pass_time(10.0)
    (source,) = made.executions("source")
    acknowledge(made, source, checkpoint_id + 1)
    made.sent.clear()
    fail(made)
    made.pass_time(0.1)
    deploy = made.one(commands.DeployTasks)
    restored = {
        task.subtask: task.restored for task in deploy.tasks if task.vertex_id == source_id(made)
    }
    assert restored[0] is not None
    assert [s.lists["l"] for s in restored[0]] == [(f"source {checkpoint_id}".encode(),)]
    made.report(made.executions(), ExecutionState.INITIALIZING, RUNNING)
    answer = made.one(commands.SendOperatorMessage, ask_split(made, 0))
    assert '"start": 20' in answer.message.split_json, "the third split: two are the reader's"  # type: ignore[union-attr]
    assert complete(made) == checkpoint_id + 2, "ids go on"


def source_id(made: World) -> object:
    return made.core.graph.vertices[0].vertex.vertex_id


def test_what_had_finished_is_not_deployed_again() -> None:
    made = world()
    (source,) = made.executions("source")
    made.report([source], FINISHED)
    complete_of(made, "sink")
    for _ in range(2):  # it has finished in every later checkpoint, too (invariant 15)
        fail(made, "sink")
        deploy = made.one(commands.DeployTasks, made.pass_time(0.1))
        (sink,) = made.executions("sink")
        assert [task.attempt_id for task in deploy.tasks] == [sink.attempt_id]
        assert [locations.ended for locations in deploy.locations] == [True]
        (source,) = made.executions("source")
        assert source.restored_finished
        made.report([sink], ExecutionState.INITIALIZING, RUNNING)
        trigger = made.one(commands.TriggerCheckpoint, made.pass_time(10.0))
        assert trigger.attempt_ids == (sink.attempt_id,)
        acknowledge(made, sink, trigger.checkpoint_id)
        metadata = made.of(commands.StoreCheckpoint)[-1].metadata
        assert {o.operator_id: o.finished for o in metadata.operators} == {
            operator_id("source"): True,
            operator_id("sink"): False,
        }
        made.post(events.CheckpointStored(checkpoint_id=trigger.checkpoint_id))
    data_ended = events.TaskDataEnded(
        task_executor_id=TaskExecutorId("tm"), attempt_id=sink.attempt_id
    )
    made.one(commands.TriggerCheckpoint, made.post(data_ended))
    made.report([sink], FINISHED)
    assert made.core.graph.status is JobStatus.FINISHED


def test_a_vertex_of_which_some_subtasks_had_finished_is_deployed_again() -> None:
    sequence = {"start": 0, "end": 100, "split_rows": 10}
    graph = job(vertex("source", 2, coordinator=("sequence-source", sequence)), vertex("sink", 1))
    made = World(
        graph,
        JobSettings(
            checkpoints=CheckpointSettings(directory="/d", interval_s=10.0),
            restart=FixedDelay(attempts=9, delay_s=0.0),
            heartbeat_timeout_s=1000.0,
        ),
    )
    made.start()
    made.give_slots("tm", 2)
    made.analyze()
    made.report(made.executions(), ExecutionState.INITIALIZING, RUNNING)
    finished, running = made.executions("source")
    made.report([finished], FINISHED)
    trigger = made.one(commands.TriggerCheckpoint, made.pass_time(10.0))
    for execution in (running, *made.executions("sink")):
        acknowledge(made, execution, trigger.checkpoint_id)
    made.post(events.CheckpointStored(checkpoint_id=trigger.checkpoint_id))
    made.report([running], FAILED)
    made.report(made.executions("sink"), ExecutionState.CANCELED)
    deploy = made.one(commands.DeployTasks, made.pass_time(0.1))
    assert len(deploy.tasks) == 3
    assert not any(locations.ended for locations in deploy.locations)


def test_a_job_that_fails_before_its_first_checkpoint_starts_over() -> None:
    made = world()
    made.sent.clear()
    fail(made)
    made.pass_time(0.1)
    assert {task.restored for task in made.one(commands.DeployTasks).tasks} == {None}


def test_the_trigger_says_how_many_splits_its_snapshot_counts_on() -> None:
    made = world()
    ask_split(made, 0)
    ask_split(made, 1)
    trigger = made.one(commands.TriggerCheckpoint, made.pass_time(10.0))
    (source,) = made.executions("source")
    assert trigger.attempt_ids == (source.attempt_id,)
    assert trigger.splits == {source.attempt_id: 2}


def test_a_job_restarts_only_once_its_latest_checkpoint_is_known() -> None:
    made = world()
    trigger = made.one(commands.TriggerCheckpoint, made.pass_time(10.0))
    for execution in made.executions():
        acknowledge(made, execution, trigger.checkpoint_id)
    made.sent.clear()
    fail(made)
    made.pass_time(5.0)
    assert made.core.graph.status is JobStatus.FAILING
    made.post(events.CheckpointStored(checkpoint_id=trigger.checkpoint_id))
    made.pass_time(0.1)
    restored = [task.restored for task in made.one(commands.DeployTasks).tasks]
    assert all(part is not None for part in restored)


def test_too_many_failed_checkpoints_fail_the_job_and_name_the_task() -> None:
    made = world()
    trigger = made.one(commands.TriggerCheckpoint, made.pass_time(10.0))
    (sink,) = made.executions("sink")
    decline(made, sink, trigger.checkpoint_id)
    assert made.core.graph.status is JobStatus.FAILING
    assert (
        "sink (1/1)#0 declined: the disk is full" in made.core.exceptions.newest_first()[0].summary
    )


def test_a_reconnected_task_executor_may_have_missed_a_trigger() -> None:
    made = world()
    first = made.one(commands.TriggerCheckpoint, made.pass_time(10.0))
    made.sent.clear()
    made.connect(
        "tm", [offer(0)], [events.TaskUpdate(e.attempt_id, e.state) for e in made.executions()]
    )
    notice = made.one(commands.NotifyCheckpoint)
    assert (notice.checkpoint_id, notice.completed) == (first.checkpoint_id, False)
    assert made.core.graph.status is JobStatus.RUNNING
    assert complete(made) == first.checkpoint_id + 1


def test_a_job_that_ends_leaves_no_checkpoint_behind() -> None:
    made = world()
    complete(made)
    made.sent.clear()
    made.post(events.CancelRequested())
    made.report(made.executions(), ExecutionState.CANCELED)
    assert made.core.graph.status is JobStatus.CANCELED
    assert not made.of(commands.DropAllCheckpoints), "another master may still need them"
    late = made.post(events.CheckpointStored(checkpoint_id=99))
    assert late == []
    assert made.post(events.TerminalStatusStored()) == [
        commands.DropAllCheckpoints(),
        commands.Exit(),
    ]


def test_a_checkpoint_that_comes_after_the_end_does_not_keep_files() -> None:
    """The Dispatcher has stored the end, and refuses the checkpoint before it says so."""
    made = world()
    complete(made)
    made.post(events.CancelRequested())
    made.report(made.executions(), ExecutionState.CANCELED)
    assert made.post(events.Superseded()) == []
    assert made.post(events.TerminalStatusStored()) == [
        commands.DropAllCheckpoints(),
        commands.Exit(),
    ]


@pytest.mark.parametrize(
    ("retention", "after_failure", "after_cancel"),
    [
        (Retention.NEVER, False, False),
        (Retention.FAILED, True, False),
        (Retention.FAILED_OR_CANCELED, True, True),
    ],
)
def test_checkpoints_stay_after_the_ends_that_the_retention_names(
    retention: Retention, after_failure: bool, after_cancel: bool
) -> None:
    made = world(retention=retention)
    kept = made.core.job.checkpoints.kept_after
    assert kept(JobStatus.FAILED) is after_failure
    assert kept(JobStatus.CANCELED) is after_cancel
    assert not kept(JobStatus.FINISHED)
    made.post(events.CancelRequested())
    made.report(made.executions(), ExecutionState.CANCELED)
    dropped = commands.DropAllCheckpoints() in made.post(events.TerminalStatusStored())
    assert dropped is not after_cancel


def test_another_master_restores_the_latest_checkpoint_with_new_names() -> None:
    first = world()
    ask_split(first, 0)
    complete(first)
    (command,) = first.of(commands.StoreCheckpoint)
    latest = CompleteCheckpoint(checkpoint_id=1, path="/d/chk-1")
    second = world(recovery=Recovery(epoch=2, checkpoints=(latest,), latest=command.metadata))
    deployed = second.one(commands.DeployTasks).tasks
    assert {task.attempt for task in deployed} == {ATTEMPTS_PER_MASTER}
    by_vertex = {task.vertex_id: task.restored for task in deployed}
    restored = by_vertex[source_id(second)]
    assert restored is not None
    assert [s.lists["l"] for s in restored] == [(b"source 1",)]
    answer = second.one(commands.SendOperatorMessage, ask_split(second, 0))
    assert '"start": 10' in answer.message.split_json, "the second split"  # type: ignore[union-attr]
    second.sent.clear()
    assert complete(second) == CHECKPOINTS_PER_MASTER + 2
    assert second.one(commands.StoreCheckpoint).subsumed == (1,)
    assert second.one(commands.DropCheckpoint).checkpoint_id == 1


def test_a_master_that_another_one_has_replaced_deletes_nothing() -> None:
    made = world()
    complete(made)
    trigger = made.one(commands.TriggerCheckpoint, made.pass_time(10.0))
    for execution in made.executions():
        acknowledge(made, execution, trigger.checkpoint_id)
    out = made.post(events.Superseded())
    assert made.core.graph.status is JobStatus.SUSPENDED
    assert commands.Exit() in out
    kinds = (commands.DropAllCheckpoints, commands.DropCheckpoint, commands.DropCheckpointFiles)
    assert not [command for command in out if isinstance(command, kinds)]


def test_no_job_fails_because_the_job_store_is_away() -> None:
    made = world()
    for _ in range(3):
        trigger = made.one(commands.TriggerCheckpoint, made.pass_time(10.0))
        for execution in made.executions():
            acknowledge(made, execution, trigger.checkpoint_id)
        away = events.CheckpointNotStored(
            checkpoint_id=trigger.checkpoint_id, problem="cannot be written", store_away=True
        )
        made.post(away)
    assert made.core.graph.status is JobStatus.RUNNING
    assert complete(made) == 4


def test_an_interval_without_a_directory_is_refused() -> None:
    conf = Configuration({"execution.checkpointing.interval": "1 s"})
    with pytest.raises(
        ConfigurationError, match=r"execution.checkpointing.dir is not: set the directory"
    ):
        settings_from(conf)
    directory = conf.with_overrides({"execution.checkpointing.dir": "/d"})
    assert settings_from(directory).checkpoints == CheckpointSettings(
        directory="/d", interval_s=1.0
    )
    assert settings_from(Configuration({})).checkpoints is None


def test_a_complete_savepoint_is_answered_and_restored_from_its_directory() -> None:
    made = world()
    complete(made)
    made.sent.clear()
    made.post(events.CheckpointRequested(request="r", savepoint_path="/s/savepoint-1"))
    trigger = made.one(commands.TriggerCheckpoint)
    assert trigger.savepoint
    for execution in made.executions():
        acknowledge(made, execution, trigger.checkpoint_id)
    store = made.one(commands.StoreCheckpoint)
    assert (store.savepoint_path, store.subsumed) == ("/s/savepoint-1", ())
    assert not made.of(commands.AnswerRequest)
    made.post(events.CheckpointStored(checkpoint_id=2))
    assert made.one(commands.AnswerRequest) == commands.AnswerRequest(request="r", checkpoint_id=2)
    made.sent.clear()
    fail(made)
    made.pass_time(0.1)
    assert made.one(commands.DeployTasks).restored_from == "/s/savepoint-1"
    made.report(made.executions(), ExecutionState.INITIALIZING, RUNNING)
    complete(made)
    made.sent.clear()
    fail(made)
    made.pass_time(0.1)
    assert made.one(commands.DeployTasks).restored_from == ""


def test_a_request_that_cannot_be_met_is_answered_with_the_reason() -> None:
    made = world()
    trigger = made.one(commands.TriggerCheckpoint, made.pass_time(10.0))
    made.post(events.CheckpointRequested(request="waits"))
    fail(made)
    (answer,) = made.of(commands.AnswerRequest)
    assert (answer.request, answer.problem) == ("waits", "the job is no longer running")
    made.pass_time(0.1)
    made.report(made.executions(), ExecutionState.INITIALIZING, RUNNING)
    made.sent.clear()
    made.post(events.CheckpointRequested(request="r"))
    trigger = made.one(commands.TriggerCheckpoint)
    for execution in made.executions():
        acknowledge(made, execution, trigger.checkpoint_id)
    made.post(events.CancelRequested())
    made.report(made.executions(), ExecutionState.CANCELED)
    late = made.post(events.CheckpointStored(checkpoint_id=trigger.checkpoint_id))
    assert late == [commands.AnswerRequest(request="r", checkpoint_id=trigger.checkpoint_id)]
    (refused,) = made.post(events.CheckpointRequested(request="late"))
    assert isinstance(refused, commands.AnswerRequest)
    assert refused.problem == "the job is CANCELED"


def test_a_job_without_checkpoints_takes_no_savepoint() -> None:
    made = World(job(vertex("a", 1)))
    made.run(("tm", 1))
    (answer,) = made.post(events.CheckpointRequested(request="r", savepoint_path="/s"))
    assert isinstance(answer, commands.AnswerRequest)
    assert "takes no checkpoints: run it with execution.checkpointing.interval" in answer.problem


@pytest.mark.parametrize("claims", [True, False])
def test_another_job_restores_a_savepoint_and_deletes_it_only_if_owned(
    claims: bool,
) -> None:
    first = world()
    ask_split(first, 0)
    complete(first)
    (command,) = first.of(commands.StoreCheckpoint)
    savepoint = CompleteCheckpoint(checkpoint_id=1, path="/s/savepoint-1")
    second = world(
        recovery=Recovery(
            latest=command.metadata,
            restored_from="/s/savepoint-1",
            claimed=savepoint if claims else None,
        )
    )
    deploy = second.one(commands.DeployTasks)
    assert deploy.restored_from == "/s/savepoint-1"
    assert {task.attempt for task in deploy.tasks} == {0}
    second.sent.clear()
    assert complete(second) == 2, "ids of batches never come again"
    dropped = [command.checkpoint_id for command in second.of(commands.DropCheckpoint)]
    assert dropped == ([1] if claims else [])


def test_operators_see_how_checkpoints_went() -> None:
    made = world(tolerable_failures=1)
    assert "lastCompletedCheckpointId" not in checkpoint_metrics(made.core)
    first = complete(made)
    trigger = made.one(commands.TriggerCheckpoint, made.pass_time(10.0))
    (source,), (sink,) = made.executions("source"), made.executions("sink")
    made.now += 0.5
    acknowledge(made, source, trigger.checkpoint_id)
    (pending, *_) = checkpoint_details(made.core, made.now, subtasks=False)
    assert (pending.state, pending.acknowledged, pending.tasks) == ("COLLECTING", 1, 2)
    decline(made, sink, trigger.checkpoint_id)
    failed, complete_one = checkpoint_details(made.core, made.now + 9, subtasks=True)
    assert (failed.checkpoint_id, failed.state, failed.duration_ms) == (first + 1, "FAILED", 500)
    assert "sink (1/1)#0 declined: the disk is full" in failed.failure
    assert (complete_one.checkpoint_id, complete_one.state) == (first, "COMPLETED")
    assert [part.task for part in complete_one.subtasks] == ["source (1/1)#0", "sink (1/1)#0"]
    assert complete_one.size_bytes == sum(part.size_bytes for part in complete_one.subtasks) > 0
    values = checkpoint_metrics(made.core)
    assert values["numberOfCompletedCheckpoints"] == values["numberOfFailedCheckpoints"] == 1
    assert values["numberOfInProgressCheckpoints"] == 0
    assert values["totalNumberOfCheckpoints"] == 2
    assert values["lastCompletedCheckpointId"] == first
    assert values["lastCheckpointSize"] == complete_one.size_bytes
    now_ms = made.core.now_ms(made.now)
    exposed = {sample.name: sample.value for sample in samples(made.core, "host", now_ms)}
    assert {f"flink_jobmanager_job_{name}" for name in values} <= exposed.keys()
    assert exposed["flink_jobmanager_job_checkpointInterval"] == 10_000
    last_ms = values["lastCheckpointCompletedTimestamp"]
    assert exposed["flink_jobmanager_job_checkpointAge"] == now_ms - last_ms > 10_000
    details = job_details(made.core, {}, made.now)
    assert [c.state for c in details.checkpoints] == ["FAILED", "COMPLETED"]
    assert not any(c.subtasks for c in details.checkpoints)


def test_what_barriers_that_overtake_do_not_go_with_is_refused() -> None:
    conf = Configuration(
        {
            "execution.checkpointing.interval": "1 s",
            "execution.checkpointing.dir": "/d",
            "execution.checkpointing.unaligned.enabled": "true",
            "execution.checkpointing.aligned-checkpoint-timeout": "5 s",
        }
    )
    checkpoints = settings_from(conf).checkpoints
    assert checkpoints is not None
    assert (checkpoints.unaligned, checkpoints.aligned_timeout_s) == (True, 5.0)
    with pytest.raises(ConfigurationError, match=r"max-concurrent-checkpoints: 2 is not possible"):
        settings_from(
            conf.with_overrides({"execution.checkpointing.max-concurrent-checkpoints": "2"})
        )
    with pytest.raises(ConfigurationError, match=r"at-least-once excludes"):
        settings_from(conf.with_overrides({"execution.checkpointing.mode": "at-least-once"}))


def test_a_trigger_reaches_its_tasks_as_it_was_sent() -> None:
    made = world(unaligned=True, aligned_timeout_s=0.5)
    command = made.one(commands.TriggerCheckpoint, made.pass_time(10.0))
    for sent in (
        command,
        replace(command, aligned_timeout_ms=None, unaligned=True),
        replace(command, aligned_timeout_ms=None, at_least_once=True),
    ):
        messages = TaskExecutorMessages(
            job_graph_pb2.JobGraph(job_id="j"), (), 1, dispatcher_address=""
        )
        found = BARRIER.decode(messages.convert(sent).trigger_checkpoint)
        assert (found.unaligned, found.aligned_timeout_ms, found.at_least_once) == (
            sent.unaligned,
            sent.aligned_timeout_ms,
            sent.at_least_once,
        )


def keyed_job(
    key: pa.DataType,
    recovery: Recovery | None = None,
    states: StateDescriptions | None = None,
) -> World:
    """Up to its analysis, which finds this type of the key and these states of the sink."""
    graph = job(vertex("source", 1), vertex("sink", 1))
    (edge,) = graph.edges
    keyed = replace(edge, partitioner=Partitioner.HASH, key_columns=("k", "n"))
    checkpoints = CheckpointSettings(directory="/d", interval_s=10.0)
    made = World(
        replace(graph, edges=(keyed,)),
        JobSettings(checkpoints=checkpoints, heartbeat_timeout_s=1000.0),
        recovery,
    )
    made.start()
    made.give_slots("tm", 1)
    schema = pa.schema([("n", pa.int64()), ("k", key)]).serialize().to_pybytes()
    analyses = tuple(
        events.OperatorAnalysis(operator_id(name), schema, "", states=found)
        for name, found in (("source", None), ("sink", states))
    )
    made.post(events.JobAnalyzed(task_executor_id=TaskExecutorId("tm"), operators=analyses))
    return made


def test_what_a_task_says_about_checkpoints_arrives_as_it_was_said() -> None:
    state = snapshot("sink", "state").operators
    state += (OperatorSnapshot(operator_id=operator_id("window"), watermark_us=5),)
    part = Snapshot(
        operators=state,
        operators_finished=True,
        start_delay_ms=4.5,
        alignment_ms=3.5,
        sync_ms=2.5,
        async_ms=1.5,
    )
    said = CheckpointAcknowledged(attempt_id=AttemptId("a"), checkpoint_id=7, snapshot=part)
    who = TaskExecutorId("tm")

    def heard(answer: CheckpointAnswer) -> events.Event:
        """By the JobMaster, through the TaskExecutor."""
        message = from_executor(ExecutorId("e"), JobId("j"), checkpoint_answer("j", answer))
        assert isinstance(message, ProcessMessageReceived)
        return from_task_executor(who, message.message)

    assert heard(said) == events.CheckpointAcknowledged(
        task_executor_id=who, attempt_id=AttemptId("a"), checkpoint_id=7, snapshot=part
    )
    ended = DataEnded(attempt_id=AttemptId("a"))
    assert heard(ended) == events.TaskDataEnded(task_executor_id=who, attempt_id=AttemptId("a"))


def checkpointed(first: World) -> CheckpointMetadata:
    """The sink has state in it."""
    first.report(first.executions(), ExecutionState.INITIALIZING, RUNNING)
    trigger = first.one(commands.TriggerCheckpoint, first.pass_time(10.0))
    handle = KeyedHandle(file=StateFile(path="chk-1/f", size_bytes=1, checksum=""), slices=())
    state = OperatorSnapshot(operator_id=operator_id("sink"), keyed=(handle,))
    for execution, operators in zip(first.executions(), ((), (state,)), strict=True):
        assert execution.slot is not None
        first.post(
            events.CheckpointAcknowledged(
                task_executor_id=execution.slot.task_executor_id,
                attempt_id=execution.attempt_id,
                checkpoint_id=trigger.checkpoint_id,
                snapshot=Snapshot(operators=operators),
            )
        )
    return decode(encode(first.one(commands.StoreCheckpoint).metadata), "here")


def test_a_key_of_another_type_is_refused_before_anything_is_deployed() -> None:
    latest = checkpointed(keyed_job(pa.string()))
    assert keyed_job(pa.string(), Recovery(latest=latest)).of(commands.DeployTasks)
    refused = keyed_job(pa.int32(), Recovery(latest=latest))
    assert not refused.of(commands.DeployTasks)
    assert refused.core.graph.status is JobStatus.FAILED
    assert (
        "the key of 'sink' has the type int32, int64, and had string, int64 in the checkpoint"
        in refused.core.exceptions.newest_first()[0].summary
    )


def value(*columns: tuple[str, str]) -> StateDescription:
    fields = [{"name": name, "type": kind, "nullable": True} for name, kind in columns]
    return StateDescription(
        kind=StateKind.VALUE, values={"type": "struct", "fields": fields}, ttl_ms=5
    )


def test_states_of_other_types_are_refused_before_anything_is_deployed() -> None:
    first = keyed_job(pa.string(), states={"s": value(("n", "long")), "gone": value()})
    recovery = Recovery(latest=checkpointed(first))

    def again(states: StateDescriptions | None) -> World:
        return keyed_job(pa.string(), recovery, states)

    assert again({"s": value(("n", "long"), ("new", "string"))}).of(commands.DeployTasks)
    assert again(None).of(commands.DeployTasks), "they are not known before it runs"
    refused = again({"s": value(("n", "string"))})
    assert not refused.of(commands.DeployTasks)
    assert refused.core.graph.status is JobStatus.FAILED
    (failure, *_) = refused.core.exceptions.newest_first()
    assert (
        "operator 'sink' (without a uid) does not fit the checkpoint: its state 's' cannot be"
        " restored: its column 'n' was BIGINT in the checkpoint, and is STRING now"
        in failure.summary
    )


def test_states_that_a_program_does_not_declare_stay_what_they_were() -> None:
    was = {"s": value(("n", "long")), "gone": value(("g", "string"))}
    recovery = Recovery(latest=checkpointed(keyed_job(pa.string(), states=was)))
    assert recovery.latest is not None
    now = {"s": value(("n", "long"), ("new", "string"))}
    kept = checkpointed(keyed_job(pa.string(), recovery, now))
    (sink,) = (o for o in kept.operators if o.name == "sink")
    assert sink.states == {"gone": was["gone"], "s": now["s"]}


def test_another_sequence_is_refused_before_anything_is_deployed() -> None:
    first = world()
    complete(first)
    recovery = Recovery(latest=first.one(commands.StoreCheckpoint).metadata)
    refused = analyzed(recovery, end=200)
    assert not refused.of(commands.DeployTasks)
    assert refused.core.graph.status is JobStatus.FAILED
    assert (
        "'source' cannot resume from the checkpoint: it was from 0 to 100 and is now from 0 to 200"
        in refused.core.exceptions.newest_first()[0].summary
    )
