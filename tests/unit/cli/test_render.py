"""The output of commands about jobs and clusters."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from firesteel.client import render
from firesteel.client.cli.jobs import job_line
from firesteel.client.cluster import ClusterDirectory, ClusterExists, ClusterState, NoCluster
from firesteel.client.cluster.directory import MasterProcess
from firesteel.client.job_details import (
    Attempt,
    CheckpointDetails,
    Choice,
    ClusterOverview,
    JobDetails,
    JobOverview,
    OperatorDetails,
    Subtask,
    SubtaskCheckpoint,
    TaskExecutorOverview,
    Vertex,
)
from firesteel.client.progress import Paces, PlainDisplay
from firesteel.common import units
from firesteel.common.ids import Epoch
from firesteel.common.leader import Leader, Office
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.common.task_metrics import PartitionProgress, TaskMetrics, TopicProgress
from firesteel.errors import ErrorInfo
from firesteel.high_availability.incumbent import Incumbent
from tests import job_details

JOB = "a" * 32


def attempt(state: ExecutionState, *, number: int = 0, records: int = 0) -> Attempt:
    return Attempt(
        attempt_id=f"{number:032x}",
        number=number,
        state=state,
        host="node",
        task_executor_id="c" * 32,
        slot_index=1,
        entered_ms={state: 1000},
        metrics=TaskMetrics(records_in=records, busy_ms=30, idle_ms=70, bytes_in=2048),
        error=None,
    )


def details(
    status: JobStatus = JobStatus.RUNNING,
    state: ExecutionState = ExecutionState.RUNNING,
    **fields: object,
) -> JobDetails:
    vertex = Vertex(
        vertex_id="v" * 32,
        name="Source: [numbers] -> Map",
        parallelism=2,
        max_parallelism=128,
        slot_sharing_group="default",
        operators=(
            OperatorDetails(
                operator_id="o",
                uid="numbers",
                name="Map",
                kind="Transform",
                runs_on_spark=True,
                plan="Scan",
            ),
        ),
        subtasks=(
            Subtask(
                index=0,
                attempts=(attempt(ExecutionState.FAILED), attempt(state, number=1, records=1234)),
            ),
            Subtask(index=1, attempts=(attempt(state),)),
        ),
        input_vertex_ids=(),
    )
    return JobDetails(
        job_id=JOB, name="my job", status=status, start_ms=1000, vertices=(vertex,), **fields
    )


def printed(parts: object, width: int = 200) -> str:
    console = Console(width=width, markup=False, highlight=False, record=True, file=io.StringIO())
    for part in parts:
        console.print(part)
    console.file.close()
    return console.export_text()


def test_a_line_of_list_is_what_scripts_grep() -> None:
    overview = JobOverview(
        job_id=JOB,
        name="my job",
        status=JobStatus.RUNNING,
        start_ms=1_700_000_000_000,
        end_ms=0,
        tasks_by_state={},
    )
    assert re.fullmatch(
        rf"\d\d\.\d\d\.\d{{4}} \d\d:\d\d:\d\d : {JOB} : my job \(RUNNING\)", job_line(overview)
    )


def test_show_has_subtasks_attempts_slots_and_counters() -> None:
    text = printed(render.job(details()))
    assert "Source: [numbers] -> Map" in text
    assert re.search(r"1/2 +#0 +FAILED +node cccccccc/1", text)
    assert re.search(r"1/2 +#1 +RUNNING +node cccccccc/1 +1,234 +0 +2.0 KiB", text)
    narrow = printed(render.job(details(), width=80), width=80)
    assert re.search(r"1/2 +#1 +RUNNING +cccccccc/1 +1,234 +0", narrow)
    assert re.search(r"1/2 #1 +30% +70%", narrow)
    assert max(map(len, narrow.splitlines())) <= 80
    assert "30%" in text
    assert "on Spark" in text
    assert "Scan" not in text
    assert "Scan" in printed(render.job(details(), full=True))


def test_an_error_starts_with_the_users_traceback() -> None:
    error = ErrorInfo(
        summary="ValueError: no",
        user_traceback="Traceback (most recent call last):\n"
        '  File "job.py", line 3, in f\n'
        "ValueError: no",
        traceback="the runtime's own",
        timestamp_ms=1000,
        location="node, slot 1",
        task_name="Map (1/2)#0",
    )
    text = printed(render.job(details(JobStatus.FAILED, exceptions=(error,), end_ms=3000)))
    assert (
        text.index("Error in Map (1/2)#0")
        < text.index('File "job.py", line 3')
        < text.index("on Spark")
    )
    assert "the runtime's own" not in text
    assert "the runtime's own" in printed(
        render.job(details(JobStatus.FAILED, exceptions=(error,)), full=True)
    )


def test_errors_that_a_job_has_survived_come_last() -> None:
    error = ErrorInfo(summary="ValueError: no", timestamp_ms=1000, task_name="Map (1/2)#0")
    for status in (JobStatus.RUNNING, JobStatus.FINISHED):
        text = printed(render.job(details(status, exceptions=(error,), end_ms=3000)))
        assert "\nError" not in text
        history = text.index("Exception history, newest first\nEarlier error in Map (1/2)#0:")
        assert text.index("on Spark") < history
    text = printed(render.job(details(JobStatus.RESTARTING, exceptions=(error,))))
    assert text.index("Error in Map (1/2)#0") < text.index("on Spark")


def test_the_same_error_in_many_tasks_is_shown_once() -> None:
    errors = tuple(
        ErrorInfo(
            summary="ValueError: no",
            user_traceback="Traceback\nValueError: no",
            traceback="",
            timestamp_ms=1,
            location="node",
            task_name=f"Map ({n}/2)#0",
        )
        for n in (1, 2)
    )
    text = printed(render.job(details(JobStatus.FAILED, exceptions=errors, end_ms=3000)))
    assert text.count("ValueError: no") == 1
    assert "The same in Map (2/2)#0." in text


def moving(
    records: int,
    busy_ms: float,
    idle_ms: float,
    status: JobStatus = JobStatus.RUNNING,
    **fields: object,
) -> JobDetails:
    job = details(status, **fields)
    current = replace(
        attempt(ExecutionState.RUNNING),
        metrics=TaskMetrics(records_in=records, busy_ms=busy_ms, idle_ms=idle_ms),
    )
    [vertex] = job.vertices
    return replace(
        job, vertices=(replace(vertex, subtasks=(Subtask(index=0, attempts=(current,)),)),)
    )


def test_rates_cover_the_last_seconds_and_finally_the_whole_job() -> None:
    paces = Paces()
    vertex_id = details().vertices[0].vertex_id
    assert paces.update(moving(0, 0, 0), 100.0) == {}
    assert paces.update(moving(1000, 900, 100), 101.0)[vertex_id] == render.Pace(
        records_in_per_s=1000, busy=0.9, idle=0.1
    )
    for second in range(2, 9):  # then nothing comes any more
        last = paces.update(moving(1000, 900, 100 + 1000 * second), 100.0 + second)
    assert last[vertex_id] == render.Pace(idle=1.0)
    assert (
        paces.update(moving(0, 0, 0), 109.0)[vertex_id].records_in_per_s == 0
    )  # a new attempt counts from zero
    ended = paces.update(moving(1000, 900, 100, JobStatus.FINISHED, end_ms=6000), 110.0)[vertex_id]
    assert ended == render.Pace(records_in_per_s=200, busy=0.9, idle=0.1)  # it ran from 1 s to 6 s


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (336_776, "336,776"),
        (12_345_678, "12.3 M"),
        (9.9e11, "990.0 G"),
        (5e15, "5000.0 T"),
    ],
)
def test_amounts_stay_short(count: float, text: str) -> None:
    assert units.count(count) == text


@pytest.mark.parametrize(
    ("per_s", "text"), [(0.4, "0/s"), (1234, "1,234/s"), (56_789, "57 k/s"), (2_340_000, "2.3 M/s")]
)
def test_rates_stay_short(per_s: float, text: str) -> None:
    assert units.rate(per_s) == text


def test_the_live_table_fits_a_terminal_of_80_columns() -> None:
    job = moving(123_456_789, 900, 100)
    [vertex] = job.vertices
    vertex = replace(
        vertex,
        name="Source: a very long name -> of a chain -> with many operators -> in it",
        input_vertex_ids=("x",),
    )
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(
        render.progress(
            replace(job, vertices=(vertex,)),
            {vertex.vertex_id: render.Pace(records_in_per_s=2e6, busy=0.9)},
        )
    )
    console.file.close()
    lines = console.export_text().splitlines()
    assert len(lines) == 3, lines
    assert re.search(r"\[1\] Source: a.*… +1 RUNNING +123\.5 M +2\.0 M/s +- +90% busy", lines[2])


def test_plain_progress_is_a_line_at_every_change(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay(lambda: "localhost:1")
    display.begin()
    display.update(
        details(JobStatus.CREATED, ExecutionState.SCHEDULED, waiting_for="2 more slots (for 1 s)")
    )
    display.update(
        details(JobStatus.CREATED, ExecutionState.SCHEDULED, waiting_for="2 more slots (for 2 s)")
    )
    display.update(details(JobStatus.RUNNING, ExecutionState.RUNNING))
    display.update(details(JobStatus.RUNNING, ExecutionState.RUNNING))
    display.update(details(JobStatus.FINISHED, ExecutionState.FINISHED))
    lines = [line[9:] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "Details: firesteel show -m localhost:1 aaaaaaaa; logs: firesteel logs -m localhost:1 aaaaaaaa",
        "job CREATED, waiting for 2 more slots (for 1 s)",
        "Source: [numbers] -> Map: 2 SCHEDULED (1,234 records in)",
        "job RUNNING",
        "Source: [numbers] -> Map: 2 RUNNING (1,234 records in)",
        "job FINISHED",
        "Source: [numbers] -> Map: 2 FINISHED (1,234 records in, 70% idle)",
    ]


def test_progress_shows_why_a_job_restarts(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay(lambda: "localhost:1")
    display.begin()
    first, second = (
        ErrorInfo(
            summary="ValueError: bad row",
            user_traceback="  job.py, line 6\nValueError: bad row\n",
            timestamp_ms=time_ms,
            task_name=f"Map (1/1)#{attempt}",
        )
        for attempt, time_ms in enumerate((1000, 2000))
    )
    lost = ErrorInfo(summary="its producer ended", timestamp_ms=1001, consequence=True)
    running = details(JobStatus.RUNNING, ExecutionState.RUNNING)
    display.update(replace(running, exceptions=(lost, first)))
    display.update(replace(running, exceptions=(second, lost, first)))
    display.update(replace(running, exceptions=(second, lost, first)))
    third = replace(second, timestamp_ms=3000)
    display.update(replace(running, status=JobStatus.FAILED, exceptions=(third, second, first)))
    printed = capsys.readouterr().err
    assert printed.count("ValueError: bad row\n  job.py, line 6\nValueError: bad row\n") == 1
    assert printed.count("Map (1/1)#1 failed again: ValueError: bad row\n") == 1
    assert printed.count("failed") == 2
    assert "producer" not in printed


def test_the_live_table_shows_status_states_and_counts() -> None:
    text = printed([render.progress(details(waiting_for="1 more slot"), {}, cancelling=True)])
    assert "my job  RUNNING" in text
    assert "waiting for 1 more slot" in text
    assert "Ctrl-C again to leave" in text
    assert "1,234" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0123, "12 ms"), (12.34, "12.3 s"), (61, "1 min 01 s"), (3661, "1 h 01 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert units.duration(seconds) == text


def test_metrics_add_up() -> None:
    total = (
        TaskMetrics(records_in=1, watermark_us=5)
        + TaskMetrics(records_in=2, watermark_us=3)
        + TaskMetrics()
    )
    assert (total.records_in, total.watermark_us) == (3, 3)


def state_of(pid: int) -> ClusterState:
    return ClusterState(
        cluster_id="d" * 32,
        supervisor_pid=pid,
        dispatcher_address="127.0.0.1:6123",
        resource_manager_address="127.0.0.1:7000",
        task_executors=2,
        slots_per_task_executor=2,
        started_ms=1000,
        version="0",
    )


def test_cluster_status_shows_slots_and_workers() -> None:
    worker = TaskExecutorOverview(
        task_executor_id="e" * 32,
        address="127.0.0.1:7001",
        host="node",
        pid=77,
        slots=2,
        slots_free=1,
        slots_warm=2,
    )
    overview = ClusterOverview(
        version="0",
        resource_manager_address="127.0.0.1:7000",
        resource_manager_problem="",
        slots_total=2,
        slots_free=1,
        slots_warm=2,
        slots_missing=3,
        jobs_running=1,
        jobs_finished=2,
        jobs_canceled=0,
        jobs_failed=0,
        task_executors=(worker,),
    )
    text = printed(render.cluster(state_of(5), overview, Path("/logs")))
    assert "Slots: 1 free of 2, 2 warm, 3 missing" in text
    assert "Jobs: 1 running, 2 finished" in text
    assert "stopping" not in text
    leaving = replace(worker, task_executor_id="f" * 32, stops=True)
    overview = replace(overview, task_executors=(worker, leaving))
    (row,) = [
        line
        for line in printed(render.cluster(state_of(5), overview, Path("/logs"))).splitlines()
        if "stopping" in line
    ]
    assert "fff" in row
    assert re.search(r"e{32} +127.0.0.1:7001 +node +77 +2 +1 +2", text)


def test_cluster_status_shows_who_leads_and_who_stands_by() -> None:
    here = [("dispatcher", "1:1", 11), ("dispatcher", "1:2", 12), ("resource_manager", "1:3", 13)]
    state = replace(
        state_of(5),
        dispatcher_address="zookeeper://zk:2181/firesteel/orders",
        masters=tuple(MasterProcess(office=o, address=a, pid=p) for o, a, p in here),
    )
    elsewhere = {Office.DISPATCHER: Incumbent(Leader("2:9", Epoch(8)), 1000)}
    text = printed(render.masters(state, elsewhere))
    assert re.search(r"Dispatcher +1:1 +11 +standby *\n", text)
    assert re.search(r"Dispatcher +2:9 +leads +8 ", text)
    assert "No ResourceManager leads" in text
    led = {
        Office.DISPATCHER: Incumbent(Leader("1:2", Epoch(3)), 1000),
        Office.RESOURCE_MANAGER: Incumbent(Leader("1:3", Epoch(1)), 1000),
    }
    text = printed(render.masters(state, led))
    assert re.search(r"Dispatcher +1:1 +11 +standby", text)
    assert re.search(r"Dispatcher +1:2 +12 +leads +3 ", text)
    assert re.search(r"ResourceManager +1:3 +13 +leads +1 ", text)
    assert "No ResourceManager" not in text


def test_a_refused_second_cluster_names_the_folder_and_the_pid(tmp_path: Path) -> None:
    import os

    first = ClusterDirectory(tmp_path)
    first.acquire()
    first.write(state_of(os.getpid()))
    with pytest.raises(ClusterExists, match=rf"{tmp_path} \(supervisor pid {os.getpid()}\)"):
        ClusterDirectory(tmp_path).acquire()
    assert ClusterDirectory(tmp_path).read() == state_of(os.getpid())
    first.release()
    with pytest.raises(NoCluster, match="firesteel cluster start"):
        ClusterDirectory(tmp_path).read()
    second = ClusterDirectory(tmp_path)
    second.acquire()
    second.release()


def test_of_former_workers_only_the_last_weeks_logs_stay(tmp_path: Path) -> None:
    import os
    import time

    for name in ("worker-1-aaa", "worker-2-bbb"):
        for part in ("log", "jobs"):
            (tmp_path / name / part).mkdir(parents=True)
            (tmp_path / name / part / "file").touch()
    long_ago = time.time() - 8 * 24 * 3600
    os.utime(tmp_path / "worker-1-aaa", (long_ago, long_ago))
    directory = ClusterDirectory(tmp_path)
    directory.acquire()
    directory.sweep()
    directory.release()
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("file")] == [
        "worker-2-bbb/log/file"
    ]


def test_show_lists_fused_plans_and_their_times() -> None:
    operators = tuple(
        OperatorDetails(
            operator_id=name,
            uid="",
            name=name,
            kind=name,
            runs_on_spark=name != "MapInArrow",
            plan="",
            group=group,
        )
        for name, group in (("Source", 0), ("Transform", 0), ("MapInArrow", 1), ("Filter", 2))
    )
    metrics = TaskMetrics(
        busy_ms=80,
        idle_ms=20,
        spark_ms=50,
        spark_planning_ms=20,
        spark_converting_ms=5,
        spark_reading_ms=10,
        python_ms=10,
        bundles=4,
        bundle_records=4_000,
        last_bundle_records=500,
        plans_made=2,
        cached_runs=3,
    )
    base = details().vertices[0]
    running = replace(attempt(ExecutionState.RUNNING), metrics=metrics)
    vertex = replace(base, operators=operators, subtasks=(Subtask(index=0, attempts=(running,)),))
    text = printed(render.job(replace(details(), vertices=(vertex,))))
    assert re.search(
        r"one plan on Spark of 2 operators\n.*Source.*\n.*Transform.*\n.*MapInArrow.*\n.*Filter",
        text,
    )
    assert text.count("one plan on Spark") == 1
    lines = [" ".join(line.split()) for line in text.splitlines() if line][-4:]
    assert lines == [
        "Task Time Spark Python Busy Idle Back-pressured",  # no exchange: there was none
        "1/2 100 ms 50% 10% 80% 20% 0%",
        "On Spark Planning Running Converting Files Bundles Mean Last Plans Cached",
        "1/2 20% 15% 5% 10% 4 1,000 500 2 3",
    ]


def test_show_full_names_who_reads_and_computes() -> None:
    def operator(name: str, group: int, choice: Choice | None) -> OperatorDetails:
        return OperatorDetails(
            operator_id=name,
            uid="",
            name=name,
            kind=name,
            runs_on_spark=choice is None,
            plan="",
            group=group,
            choice=choice,
        )

    reason = "files: /data/x.csv from byte 0: quotes"
    operators = (
        operator("Read csv", 0, None),
        operator("Keys", 0, Choice("Arrow, or Spark by content", "Spark, cached plan", reason)),
        operator("Map", 1, Choice("", "Python", "")),
        operator("Print", 2, None),
    )
    job = replace(
        details(), vertices=(replace(details().vertices[0], operators=operators, subtasks=()),)
    )
    lines = printed(render.job(job, full=True)).splitlines()
    start = lines.index("How operators run")
    assert [re.split(r"  +", line.rstrip()) for line in lines[start + 1 :]] == [
        ["Operators", "Read by", "Computed by", "Reason"],
        ["[1] Read csv, Keys", "Arrow, or Spark by content", "Spark, cached plan", reason],
        ["[1] Map", "Python"],
    ]
    assert "How operators run" not in printed(render.job(job))


def test_the_output_of_show_for_a_task_fits_80_columns() -> None:
    metrics = TaskMetrics(
        records_in=12_345_678_901,
        records_out=9_999_999,
        busy_ms=80e6,
        idle_ms=20e6,
        back_pressured_ms=1e6,
        spark_reading_ms=10,
        spark_ms=50e6,
        python_ms=10e6,
        exchange_ms=5e6,
        aligning_ms=10.1e6,
        late_records_dropped=1,
        bundles=123_456,
        bundle_records=123_456 * 999_999,
        last_bundle_records=4_000_000,
        plans_made=123_456,
        cached_runs=123_456,
    )
    running = replace(attempt(ExecutionState.INITIALIZING), metrics=metrics)
    vertex = replace(
        details().vertices[0], parallelism=128, subtasks=(Subtask(index=99, attempts=(running,)),)
    )
    text = printed(render.job(replace(details(), vertices=(vertex,)), width=80), width=80)
    tables = [line.split() for line in text.splitlines() if line.startswith("  ")]
    assert tables == [
        ["Task", "#", "State", "Slot", "Records", "in", "Records", "out", "Late", "Aligning"],
        ["100/128", "#0", "INITIALIZING", "cccccccc/1", "12.3", "G", "9,999,999", "1", "10%"],
        ["Task", "Spark", "Python", "Exchange", "Busy", "Idle", "Blocked"],
        ["100/128", "50%", "10%", "5%", "79%", "20%", "1%"],
        ["On", "Spark", "Planning", "Running", "Converting", "Files", "Bundles", "Plans", "Cached"],
        ["100/128", "0%", "50%", "0%", "0%", "123.5", "k", "123.5", "k", "123.5", "k"],
    ]


def test_info_shows_fused_plans() -> None:
    from firesteel import Environment
    from firesteel.connectors import FileSource

    env = Environment(parallelism=1)
    lines = env.from_source(FileSource("/tmp/x.csv", format="csv", schema="a INT"), uid="lines")
    lines.filter("a > 1", name="Large").map_in_arrow(lambda batches: batches, name="Mine").print()
    lines.filter("a > 2", name="Larger").rebalance().print()
    text = printed(render.plan(env.job_graph()))
    assert "one plan on Spark" not in text, "the source feeds two operators"
    env = Environment(parallelism=1)
    lines = env.from_source(FileSource("/tmp/x.csv", format="csv", schema="a INT"), uid="lines")
    lines.filter("a > 1", name="Large").map_in_arrow(lambda batches: batches, name="Mine").print()
    text = printed(render.plan(env.job_graph()))
    assert re.search(
        r"chain of 4 operators\n.*one plan on Spark of 2 operators\n.*lines.*\n.*Large.*\n.*Mine",
        text,
    )


def test_show_checkpoints_lists_durations_and_failures() -> None:
    assert "None: the job takes no checkpoints" in printed(render.checkpoints(details()))
    part = SubtaskCheckpoint(
        task="Map (1/2)#0",
        size_bytes=2048,
        start_delay_ms=4.5,
        alignment_ms=3.25,
        sync_ms=0.5,
        async_ms=1234,
    )
    complete = CheckpointDetails(
        checkpoint_id=7,
        savepoint=True,
        state="COMPLETED",
        triggered_ms=1000,
        duration_ms=1250,
        size_bytes=2048,
        acknowledged=2,
        tasks=2,
        failure="",
        start_delay_ms=4.5,
        alignment_ms=3.25,
        sync_ms=0.5,
        async_ms=1234,
        subtasks=(part,),
    )
    failed = replace(
        complete, checkpoint_id=8, savepoint=False, state="FAILED", failure="the disk is full"
    )
    shown = details(checkpoints=(failed, complete))
    text = printed(render.checkpoints(shown))
    assert re.search(
        r"7 +savepoint +COMPLETED .* 2/2 +1,250 ms +2.0 KiB +4.5 ms +3.2 ms +0.5 ms", text
    )
    assert "8 failed: the disk is full" in text
    assert "Map (1/2)#0" not in text
    assert re.search(
        r"Map \(1/2\)#0 +2.0 KiB +4.5 ms", printed(render.checkpoints(shown, full=True))
    )


def test_show_counts_ranges_of_a_partition() -> None:
    def of_subtask(index: int) -> Attempt:
        present = PartitionProgress("orders", 0, 100 * index, None, 100 * index + 50)
        progress = TopicProgress.of([present], waiting_records=30)
        return job_details.attempt(metrics=TaskMetrics(topics={"o": progress}))

    source = OperatorDetails(
        operator_id="o", uid="", name="Source: orders", kind="source", runs_on_spark=False, plan=""
    )
    vertex = job_details.vertex(of_subtask(0), of_subtask(1), operators=(source,))
    text = printed(render.job(replace(details(), vertices=(vertex,)), full=False))
    assert "Source: orders: 2 ranges of 1 partition, lag 160 records, at most 50" in text


def test_show_tells_how_far_topics_are_read() -> None:
    def of_subtask(index: int) -> Attempt:
        partitions = [
            PartitionProgress("orders", n, 1_000 * n, 900 if n else None, 1_010 * n, n == 7)
            for n in range(index, 12, 2)
        ]
        progress = TopicProgress.of(partitions, throttle_ms=40.0 * index, failed_commits=index)
        return job_details.attempt(metrics=TaskMetrics(topics={"o": progress}))

    source = OperatorDetails(
        operator_id="o", uid="", name="Source: orders", kind="source", runs_on_spark=False, plan=""
    )
    vertex = job_details.vertex(of_subtask(0), of_subtask(1), operators=(source,))

    def lines(*, full: bool) -> list[str]:
        text = printed(render.job(replace(details(), vertices=(vertex,)), full=full))
        shown = [" ".join(line.split()) for line in text.splitlines()]
        return shown[next(i for i, line in enumerate(shown) if "12 partitions" in line) :]

    first = [
        "Source: orders: 12 partitions, lag 660 records, at most 110 in a partition",
        "Throttled: because of a quota, brokers delay requests by 40 ms.",
        "Paused: 1 partition, until the downstream operators have caught up.",
        "1 commit of offsets to the consumer group failed. The job does not depend on them.",
        "Topic Partition Next offset Committed End Lag",
    ]
    seventh = "orders 7 7,000 900 7,070 70 paused"
    assert [line for line in lines(full=False) if line][:6] == [
        *first,
        "orders 4 4,000 900 4,040 40",
    ]
    assert seventh in lines(full=False)
    assert lines(full=False)[-1] == "and 4 with smaller lags (see --full)"
    assert "orders 0 0 - 0 0" in lines(full=True)
    assert len([line for line in lines(full=True) if line.startswith("orders ")]) == 12
