"""Watermark alignment in the JobMaster: reports in, limits out."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.common.ids import AttemptId
from firesteel.common.job_graph import JobVertex
from firesteel.common.operator_messages import Resend, WatermarkLimit, WatermarkReported
from firesteel.common.states import ExecutionState
from firesteel.elements import MAX_TIMESTAMP_US, MIN_TIMESTAMP_US
from firesteel.errors import ErrorInfo
from jobmaster.core import commands, events
from jobmaster.core.coordinators import BadOptions
from jobmaster.core.coordinators.base import UnexpectedMessage
from jobmaster.core.coordinators.watermark_alignment import Announcement, WatermarkAlignment
from jobmaster.core.failover.restart_strategy import FixedDelay
from jobmaster.core.failover.strategy import Failover
from jobmaster.core.settings import JobSettings
from tests.job_master import World, job, offer, operator_id, vertex

FAST, SLOW = operator_id("fast"), operator_id("slow")


def source(
    name: str, parallelism: int, group: str = "g", drift_us: int = 10, interval_s: float = 1.0
) -> JobVertex:
    options = {
        "group": group,
        "max_drift_us": drift_us,
        "update_interval_us": int(interval_s * 1e6),
    }
    return vertex(name, parallelism, coordinator=("alignment", {"alignment": options}))


class Groups:
    """A watermark alignment, and the limits that it has announced."""

    def __init__(self, *sources: JobVertex) -> None:
        self.alignment = WatermarkAlignment.of(job(*sources, edges=False))
        self.announced: dict[str, int] = {}

    def report(
        self, name: str, subtask: int, watermark_us: int, now: float = 0.0, *, idle: bool = False
    ) -> dict[str, int]:
        report = WatermarkReported(watermark_us=watermark_us, idle=idle)
        attempt_id = AttemptId(f"{name}{subtask}")
        return self.note(
            self.alignment.reported(operator_id(name), subtask, attempt_id, report, now)
        )

    def note(self, announcements: list[Announcement]) -> dict[str, int]:
        new = {
            announcement.attempt_id: announcement.limit.limit_us for announcement in announcements
        }
        assert len(new) == len(announcements), "no reader gets the same limit twice"
        self.announced.update(new)
        return dict(new)


def test_all_wait_for_those_that_have_no_event_time_yet() -> None:
    groups = Groups(source("fast", 2), source("slow", 1))
    assert groups.report("fast", 0, 100) == {"fast0": MIN_TIMESTAMP_US}
    assert groups.report("fast", 1, 50) == {"fast1": MIN_TIMESTAMP_US}
    assert groups.report("slow", 0, 40) == {"fast1": 50, "slow0": 50}, (
        "fast0, at 100, may not continue yet"
    )
    assert groups.alignment.next_deadline() == 1.0
    assert groups.note(groups.alignment.tick(1.0)) == {"fast0": 50}, (
        "it is announced all the same, but later"
    )
    assert groups.alignment.next_deadline() is None


def test_stopped_readers_are_released_immediately_others_per_interval() -> None:
    groups = Groups(source("fast", 1), source("slow", 1, drift_us=30))
    groups.report("slow", 0, 0)
    assert groups.report("fast", 0, 5) == {"fast0": 10, "slow0": 30}
    assert groups.report("slow", 0, 3, now=0.1) == {}
    assert groups.report("fast", 0, 12, now=0.2) == {"fast0": 13}
    assert groups.report("slow", 0, 4, now=0.3) == {}, "12 is within its limit"
    assert groups.alignment.next_deadline() == pytest.approx(1.0)
    assert groups.note(groups.alignment.tick(0.9)) == {}
    assert groups.note(groups.alignment.tick(1.0)) == {"slow0": 34}
    assert groups.note(groups.alignment.tick(1.2)) == {"fast0": 14}


def test_a_limit_falls_immediately_when_a_reader_stops_idling() -> None:
    groups = Groups(source("fast", 1), source("slow", 1))
    groups.report("slow", 0, 7, idle=True)
    assert groups.report("fast", 0, 100) == {"fast0": 110, "slow0": 110}
    assert groups.report("slow", 0, 7, now=0.1) == {"fast0": 17, "slow0": 17}


def test_groups_do_not_know_each_other() -> None:
    groups = Groups(source("fast", 1), source("other", 1, group="h"))
    assert groups.report("fast", 0, 100) == {"fast0": 110}
    assert groups.report("other", 0, 5) == {"other0": 15}


def test_the_last_counted_source_continues_and_without_one_no_limit_holds() -> None:
    groups = Groups(source("fast", 1), source("slow", 2))
    groups.report("fast", 0, 100)
    groups.report("slow", 0, 1, idle=True)
    assert groups.announced["fast0"] == MIN_TIMESTAMP_US
    assert groups.note(groups.alignment.finished(SLOW, 1, 0.0))["fast0"] == 110
    assert groups.report("fast", 0, MAX_TIMESTAMP_US) == {"fast0": MAX_TIMESTAMP_US}, (
        "its end; slow0 gets it later"
    )
    assert groups.note(groups.alignment.tick(9.0)) == {"slow0": MAX_TIMESTAMP_US}


def test_a_new_attempt_starts_over() -> None:
    groups = Groups(source("fast", 1), source("slow", 1))
    groups.report("fast", 0, 8)
    groups.report("slow", 0, 5)
    groups.alignment.attempt_ended(SLOW, 0)
    assert groups.report("fast", 0, 14) == {"fast0": MIN_TIMESTAMP_US}
    groups.alignment.start_over(FAST)
    assert groups.report("fast", 0, 3) == {"fast0": MIN_TIMESTAMP_US}


def test_what_is_in_no_group_cannot_report() -> None:
    with pytest.raises(UnexpectedMessage, match="in no alignment group"):
        Groups(source("fast", 1)).report("stranger", 0, 1)


@pytest.mark.parametrize(
    ("alignment", "problem"),
    [
        (
            {"group": "g", "max_drift_us": 1},
            "operator 'fast': its alignment has no 'update_interval_us'",
        ),
        ({"group": "", "max_drift_us": 1, "update_interval_us": 1}, '"group" must be a name'),
        ({"group": "g", "max_drift_us": 0, "update_interval_us": 1}, "must be at least 1"),
        (
            {"group": "g", "max_drift_us": "1", "update_interval_us": 1},
            "operator 'fast': its alignment is not valid",
        ),
        (["g"], "operator 'fast': its alignment is not valid"),
    ],
)
def test_options_that_make_no_sense(alignment: object, problem: str) -> None:
    with pytest.raises(BadOptions, match=problem):
        WatermarkAlignment.of(
            job(vertex("fast", 1, coordinator=("alignment", {"alignment": alignment})))
        )


@dataclass
class Reader:
    """The known state of a subtask."""

    watermark_us: int = MIN_TIMESTAMP_US
    idle: bool = False
    heard_of: bool = False

    @property
    def counts(self) -> bool:
        return not self.idle and self.watermark_us != MAX_TIMESTAMP_US


SUBTASKS = [("fast", 0), ("fast", 1), ("slow", 0), ("slow", 1), ("slow", 2)]
DRIFTS_US = {"fast": 10, "slow": 25}
watermarks = st.one_of(st.integers(0, 100), st.just(MIN_TIMESTAMP_US), st.just(MAX_TIMESTAMP_US))
steps = st.one_of(
    st.tuples(st.just("report"), st.sampled_from(SUBTASKS), watermarks, st.booleans()),
    st.tuples(st.just("finished"), st.sampled_from(SUBTASKS)),
    st.tuples(st.just("ended"), st.sampled_from(SUBTASKS)),
    st.tuples(st.just("reconnected"), st.sampled_from(SUBTASKS)),
    st.tuples(st.just("pass"), st.floats(0.0, 1.5)),
)


@given(st.lists(steps, max_size=40))
def test_limits_never_exceed_the_slowest_reader_plus_the_drift(
    story: list[tuple],
) -> None:  # type: ignore[type-arg]
    groups = Groups(
        source("fast", 2, drift_us=10, interval_s=1.0),
        source("slow", 3, drift_us=25, interval_s=0.3),
    )
    readers = {subtask: Reader() for subtask in SUBTASKS}
    now = 0.0

    def allowed_us(name: str) -> int:
        lowest_us = min(
            (reader.watermark_us for reader in readers.values() if reader.counts),
            default=MAX_TIMESTAMP_US,
        )
        return (
            lowest_us
            if lowest_us in (MIN_TIMESTAMP_US, MAX_TIMESTAMP_US)
            else lowest_us + DRIFTS_US[name]
        )

    def check(told: dict[str, int]) -> None:
        for attempt, limit_us in told.items():
            assert limit_us == allowed_us(attempt[:-1])
            assert readers[(attempt[:-1], int(attempt[-1]))].heard_of

    def pass_until(until: float) -> float:
        while (deadline := groups.alignment.next_deadline()) is not None and deadline <= until:
            check(groups.note(groups.alignment.tick(deadline)))
            assert groups.alignment.next_deadline() != deadline
        return until

    def report(subtask: tuple[str, int]) -> None:
        reader = readers[subtask]
        reader.heard_of = True
        told = groups.report(*subtask, reader.watermark_us, now, idle=reader.idle)
        check(told)
        for (name, index), other in readers.items():
            key = f"{name}{index}"
            if other.heard_of and groups.announced[key] < other.watermark_us <= allowed_us(name):
                raise AssertionError(
                    f"{key} is at {other.watermark_us} and its limit is {groups.announced[key]}; "
                    "it may continue"
                )
            assert not other.heard_of or groups.announced[key] <= allowed_us(name), (
                "no reader keeps a limit that has fallen"
            )

    for what, *arguments in story:
        match what, arguments:
            case "report", [subtask, watermark_us, idle]:
                readers[subtask].watermark_us, readers[subtask].idle = watermark_us, idle
                report(subtask)
            case "finished", [(name, index)]:
                readers[(name, index)] = Reader(MAX_TIMESTAMP_US)
                check(groups.note(groups.alignment.finished(operator_id(name), index, now)))
            case "ended", [(name, index)]:
                readers[(name, index)] = Reader()
                groups.alignment.attempt_ended(operator_id(name), index)
            case "reconnected", [(name, index)] if readers[(name, index)].heard_of:
                groups.alignment.reconnected(operator_id(name), index)
                del groups.announced[f"{name}{index}"]
                report((name, index))
            case "pass", [seconds]:
                now = pass_until(now + seconds)
    for subtask in [subtask for subtask, reader in readers.items() if reader.heard_of][:1]:
        report(subtask)
    pass_until(now + 10.0)
    for (name, index), reader in readers.items():
        assert not reader.heard_of or groups.announced[f"{name}{index}"] == allowed_us(name)
    counting = [subtask for subtask, reader in readers.items() if reader.counts and reader.heard_of]
    if counting and allowed_us("fast") != MIN_TIMESTAMP_US:
        assert any(
            groups.announced[f"{name}{i}"] >= readers[(name, i)].watermark_us
            for name, i in counting
        ), "one reader continues"


def report(
    world: World, vertex_name: str, subtask: int, watermark_us: int, *, idle: bool = False
) -> list[commands.Command]:
    execution = world.executions(vertex_name)[subtask]
    assert execution.slot is not None
    return world.post(
        events.OperatorMessageReceived(
            task_executor_id=execution.slot.task_executor_id,
            operator_id=operator_id(vertex_name),
            attempt_id=execution.attempt_id,
            message=WatermarkReported(watermark_us=watermark_us, idle=idle),
        )
    )


def announced(world: World, among: list[commands.Command]) -> dict[tuple[str, int], int]:
    names = {operator_id(name): name for name in ("fast", "slow")}
    return {
        (names[sent.operator_id], sent.subtask): sent.message.limit_us
        for sent in world.of(commands.SendOperatorMessage, among)
        if isinstance(sent.message, WatermarkLimit)
    }


def test_a_job_from_reports_to_limits_over_vertices_and_their_ends() -> None:
    world = World(job(source("fast", 2), source("slow", 1), edges=False))
    world.run(("te", 2))
    assert announced(world, report(world, "fast", 0, 100)) == {("fast", 0): MIN_TIMESTAMP_US}
    assert announced(world, report(world, "fast", 1, 40)) == {("fast", 1): MIN_TIMESTAMP_US}
    assert announced(world, report(world, "slow", 0, 35)) == {("fast", 1): 45, ("slow", 0): 45}
    assert announced(world, world.pass_time(1.0)) == {("fast", 0): 45}
    assert (
        announced(world, world.report(world.executions("slow"), ExecutionState.FINISHED)) == {}
    ), "none of them waits for it"
    assert announced(world, world.pass_time(1.0)) == {("fast", 0): 50, ("fast", 1): 50}
    assert announced(
        world, world.report(world.executions("fast")[1:], ExecutionState.FINISHED)
    ) == {("fast", 0): 110}


def test_after_a_lost_connection_limits_are_said_again() -> None:
    world = World(job(source("fast", 1), source("slow", 1), edges=False))
    world.run(("te", 2))
    report(world, "slow", 0, 0)
    report(world, "fast", 0, 5)
    tasks = [events.TaskUpdate(e.attempt_id, ExecutionState.RUNNING) for e in world.executions()]
    offers = [offer(number, slot_index=number) for number in range(2)]
    resent = world.of(commands.SendOperatorMessage, world.connect("te", offers, tasks))
    assert {(sent.operator_id, sent.message) for sent in resent} == {
        (FAST, Resend()),
        (SLOW, Resend()),
    }
    assert announced(world, report(world, "fast", 0, 5)) == {("fast", 0): 10}, "once more"
    assert announced(world, report(world, "slow", 0, 0)) == {("slow", 0): 10}


def test_a_restarted_job_has_no_event_time_yet() -> None:
    world = World(
        job(source("fast", 1), source("slow", 1), edges=False),
        JobSettings(restart=FixedDelay(attempts=1, delay_s=1.0), failover=Failover.FULL),
    )
    world.run(("te", 2))
    report(world, "slow", 0, 0)
    report(world, "fast", 0, 5)
    first, second = world.executions()
    world.report([first], ExecutionState.FAILED, error=ErrorInfo(summary="broken"))
    world.report([second], ExecutionState.CANCELED)
    world.pass_time(1.0)
    world.report(world.executions(), ExecutionState.INITIALIZING, ExecutionState.RUNNING)
    assert announced(world, report(world, "fast", 0, 3)) == {("fast", 0): MIN_TIMESTAMP_US}
    assert announced(world, report(world, "slow", 0, 1)) == {("fast", 0): 11, ("slow", 0): 11}


def test_running_sources_wait_for_a_restarted_one() -> None:
    world = World(
        job(source("fast", 1), source("slow", 1), edges=False),
        JobSettings(restart=FixedDelay(attempts=1, delay_s=1.0)),
    )
    world.run(("te", 2))
    report(world, "slow", 0, 7)
    report(world, "fast", 0, 5)
    world.report(world.executions("fast"), ExecutionState.FAILED, error=ErrorInfo(summary="broken"))
    world.pass_time(1.0)
    assert announced(world, report(world, "slow", 0, 8)) == {("slow", 0): MIN_TIMESTAMP_US}
    world.report(world.executions("fast"), ExecutionState.INITIALIZING, ExecutionState.RUNNING)
    assert announced(world, report(world, "fast", 0, 3)) == {("fast", 0): 13, ("slow", 0): 13}
