"""A Spark program in the JobMaster: messages of its tasks in, messages to its executors out."""

from __future__ import annotations

from collections.abc import Sequence

from firesteel.common.operator_messages import (
    FromOperator,
    OperatorMessage,
    Resend,
    SparkMaster,
    SparkMasterAwaited,
    SparkMasterStarted,
    SparkProgramEnded,
)
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.errors import ErrorInfo
from jobmaster.core import commands, events
from jobmaster.core.failover.restart_strategy import FixedDelay
from jobmaster.core.failover.strategy import Failover
from jobmaster.core.settings import JobSettings
from tests.job_master import World, job, offer, operator_id, vertex

FIRST, SECOND = "spark://host:1", "spark://host:2"


def program(executors: int = 2) -> World:
    """Returns a running job."""
    driver = vertex("driver", 1, coordinator=("spark-driver", {}), slot_sharing_group="driver")
    world = World(
        job(
            driver, vertex("executors", executors, coordinator=("spark-executors", {})), edges=False
        ),
        JobSettings(restart=FixedDelay(attempts=9, delay_s=1.0), failover=Failover.INDIVIDUAL),
    )
    world.run(("te", executors + 1))
    return world


def says(world: World, name: str, subtask: int, message: FromOperator) -> list[commands.Command]:
    execution = world.executions(name)[subtask]
    assert execution.slot is not None
    return world.post(
        events.OperatorMessageReceived(
            task_executor_id=execution.slot.task_executor_id,
            operator_id=operator_id(name),
            attempt_id=execution.attempt_id,
            message=message,
        )
    )


def told(world: World, sent: Sequence[commands.Command]) -> dict[int, OperatorMessage]:
    """Returns what executors get, by subtask."""
    messages = world.of(commands.SendOperatorMessage, sent)
    assert all(message.operator_id == operator_id("executors") for message in messages)
    return {message.subtask: message.message for message in messages}


def started(url: str, ui: str = "") -> SparkMasterStarted:
    return SparkMasterStarted(url=url, secret="s", ui_address=ui)


def master(url: str) -> SparkMaster:
    return SparkMaster(url=url, secret="s")


def test_executors_get_the_master_whoever_is_first() -> None:
    world = program()
    assert told(world, says(world, "executors", 0, SparkMasterAwaited())) == {
        0: SparkMaster(url="")
    }
    assert told(world, says(world, "driver", 0, started(FIRST))) == {0: master(FIRST)}
    assert told(world, says(world, "executors", 1, SparkMasterAwaited())) == {1: master(FIRST)}
    assert told(world, says(world, "driver", 0, started(FIRST, "http://host:3"))) == {}
    assert world.core.job.coordinators.spark_program.ui_address == "http://host:3"


def test_a_replaced_executor_restarts_alone_and_gets_the_master() -> None:
    world = program()
    says(world, "driver", 0, started(FIRST))
    says(world, "executors", 0, SparkMasterAwaited())
    lost = world.executions("executors")[0]
    world.report([lost], ExecutionState.FAILED, error=ErrorInfo(summary="killed"))
    world.pass_time(1.0)
    first, second = world.executions("executors")
    assert (first.attempt, second.attempt) == (1, 0)
    assert world.executions("driver")[0].attempt == 0
    world.report([first], ExecutionState.INITIALIZING, ExecutionState.RUNNING)
    assert told(world, says(world, "executors", 0, SparkMasterAwaited())) == {0: master(FIRST)}


def test_executors_follow_a_restarted_driver() -> None:
    world = program()
    says(world, "driver", 0, started(FIRST, "http://host:3"))
    for subtask in range(2):
        says(world, "executors", subtask, SparkMasterAwaited())
    world.report(world.executions("driver"), ExecutionState.FAILED, error=ErrorInfo(summary="lost"))
    assert world.core.job.coordinators.spark_program.ui_address == ""
    world.pass_time(1.0)
    assert [e.attempt for e in world.executions("executors")] == [0, 0]
    world.report(world.executions("driver"), ExecutionState.INITIALIZING, ExecutionState.RUNNING)
    expected = {0: master(SECOND), 1: master(SECOND)}
    assert told(world, says(world, "driver", 0, started(SECOND))) == expected


def test_executors_end_with_the_program() -> None:
    world = program()
    says(world, "driver", 0, started(FIRST))
    says(world, "executors", 0, SparkMasterAwaited())
    finished = world.report(world.executions("driver"), ExecutionState.FINISHED)
    assert told(world, finished) == {0: SparkProgramEnded()}
    late = says(world, "executors", 1, SparkMasterAwaited())
    assert told(world, late) == {1: SparkProgramEnded()}
    world.report(world.executions("executors"), ExecutionState.FINISHED)
    assert world.core.graph.status is JobStatus.FINISHED


def test_a_lost_executor_does_not_delay_the_end_of_the_program() -> None:
    world = program()
    says(world, "driver", 0, started(FIRST))
    says(world, "executors", 0, SparkMasterAwaited())
    lost = world.executions("executors")[1]
    world.report([lost], ExecutionState.FAILED, error=ErrorInfo(summary="killed"))
    world.report(world.executions("driver"), ExecutionState.FINISHED)
    world.report(world.executions("executors")[:1], ExecutionState.FINISHED)
    assert world.core.graph.status is JobStatus.FINISHED, "it needs no other slot"


def test_an_executor_without_a_slot_does_not_delay_the_end_of_the_program() -> None:
    world = program()
    says(world, "driver", 0, started(FIRST))
    lost = world.executions("executors")[1]
    assert lost.slot is not None
    world.post(
        events.SlotLost(
            task_executor_id=lost.slot.task_executor_id,
            allocation_id=lost.slot.allocation_id,
            error=ErrorInfo(summary="killed"),
        )
    )
    world.pass_time(1.0)
    assert world.executions("executors")[1].state is ExecutionState.SCHEDULED
    world.report(world.executions("driver"), ExecutionState.FINISHED)
    world.report(world.executions("executors")[:1], ExecutionState.FINISHED)
    assert world.core.graph.status is JobStatus.FINISHED


def test_an_error_of_the_program_is_not_repeated() -> None:
    world = program()
    error = ErrorInfo(summary="ValueError: wrong", final=True)
    world.report(world.executions("driver"), ExecutionState.FAILED, error=error)
    world.report(world.executions("executors"), ExecutionState.CANCELED)
    assert world.core.graph.status is JobStatus.FAILED


def test_messages_are_repeated_after_a_lost_connection() -> None:
    world = program(executors=1)
    says(world, "driver", 0, started(FIRST))
    tasks = [events.TaskUpdate(e.attempt_id, ExecutionState.RUNNING) for e in world.executions()]
    offers = [offer(number, slot_index=number) for number in range(2)]
    resent = world.of(commands.SendOperatorMessage, world.connect("te", offers, tasks))
    assert [sent.message for sent in resent] == [Resend(), Resend()]
    assert told(world, says(world, "driver", 0, started(FIRST))) == {}
    assert told(world, says(world, "executors", 0, SparkMasterAwaited())) == {0: master(FIRST)}


def rescale(world: World, executors: int) -> list[commands.Command]:
    wanted = {"executors": executors}
    sent = world.post(
        events.RescaleRequested(request="r", parallelism=0, by_vertex=wanted, timeout_s=0.0)
    )
    return [*sent]


def test_more_executors_start_beside_the_running_ones() -> None:
    world = program()
    before = [execution.attempt_id for execution in world.executions()]
    rescale(world, 3)
    assert not world.of(commands.StoreParallelism), "it has no slot yet"
    world.give_slots("te", 1)
    sent = world.post(events.ParallelismStored())
    (deployed,) = [task for each in world.of(commands.DeployTasks, sent) for task in each.tasks]
    assert not world.of(commands.CancelTasks)
    assert [execution.attempt_id for execution in world.executions()][:3] == before
    new = world.executions("executors")[2]
    assert deployed.attempt_id == new.attempt_id
    sent = world.report([new], ExecutionState.INITIALIZING, ExecutionState.RUNNING)
    assert not world.one(commands.AnswerRescale, sent).problem
    world.report([new], ExecutionState.FAILED, error=ErrorInfo(summary="killed"))
    world.pass_time(1.0)
    assert [execution.attempt_id for execution in world.executions()][:3] == before


def test_surplus_executors_end_alone() -> None:
    world = program(executors=3)
    says(world, "driver", 0, started(FIRST))
    for subtask in range(3):
        says(world, "executors", subtask, SparkMasterAwaited())
    before = world.executions()
    rescale(world, 1)
    sent = world.post(events.ParallelismStored())
    cancelled = [
        each for sent_ in world.of(commands.CancelTasks, sent) for each in sent_.attempt_ids
    ]
    surplus = world.executions("executors")[1:]
    assert sorted(cancelled) == sorted(execution.attempt_id for execution in surplus)
    sent = world.report(surplus, ExecutionState.CANCELED)
    assert not world.one(commands.AnswerRescale, sent).problem
    assert len(world.one(commands.FreeSlots, sent).allocation_ids) == 2
    assert world.executions() == before[:2]
    assert world.core.graph.status is JobStatus.RUNNING
    assert told(world, says(world, "driver", 0, started(SECOND))) == {0: master(SECOND)}
