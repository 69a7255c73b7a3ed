"""A failure restarts the region in which it happens, and no other of the job."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from firesteel import Environment
from firesteel.client.job_details import JobDetails
from firesteel.common.job_graph import JobGraph, ResultType
from firesteel.common.process import temporary
from firesteel.common.states import ExecutionState
from firesteel.connectors import FileSink, SequenceSource
from firesteel.errors import JobFailed
from tests.e2e.conftest import Session, command, files_below, job_master_pid
from tests.e2e.jobs import ArrowFunction, endless
from tests.long import long_after
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("shipped_module")

ROWS = 12_000
PER_S = 4_000


def attempts_by_pipeline(details: JobDetails) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for vertex in details.vertices:
        for subtask in vertex.subtasks:
            assert subtask.current is not None
            found.setdefault(vertex.slot_sharing_group, set()).add(subtask.current.number)
    return found


def test_a_killed_process_restarts_only_its_pipeline_from_the_checkpoint(
    session: Session, tmp_path: Path
) -> None:
    killed = tmp_path / "killed"

    def dies_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not killed.exists() and any((tmp_path / "dies").glob("part-*")):  # a checkpoint
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    def goes_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    env = Environment(
        parallelism=1,
        configuration={
            "execution.checkpointing.interval": "200 ms",
            "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "1",
            "restart-strategy.fixed-delay.delay": "0 s",
        },
    )
    for function in (dies_once, goes_on):
        group = function.__name__.partition("_")[0]
        (
            env.from_source(SequenceSource(0, ROWS, rate_per_s=PER_S))
            .slot_sharing_group(group)
            .rebalance()
            .map_in_arrow(function)
            .slot_sharing_group(group)
            .sink_to(FileSink(str(tmp_path / group)))
            .slot_sharing_group(group)
        )
    job_id = session.submit(env)
    details = session.client.wait(job_id)
    assert killed.exists()
    assert attempts_by_pipeline(details) == {"dies": {1}, "goes": {0}}
    assert "SIGKILL" in details.exceptions[0].summary
    for group in ("dies", "goes"):
        values = ds.dataset(tmp_path / group, format="parquet").to_table()["value"]
        assert sorted(values.to_pylist()) == list(range(ROWS)), f"{group}: every row once"


def test_individual_restarts_are_refused_where_data_is_exchanged(session: Session) -> None:
    job_id = session.submit(endless(), **{"jobmanager.execution.failover-strategy": "individual"})
    with pytest.raises(JobFailed, match=r"jobs.py, line \d+: .*individual restarts tasks without"):
        session.client.wait(job_id)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mode", ["batch", "streaming"])
def test_an_individual_restart_leaves_the_other_subtasks_alone(
    session: Session, tmp_path: Path, mode: str
) -> None:
    failed, goes_on, out = (tmp_path / name for name in ("failed", "goes-on", "out"))

    def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with contextlib.suppress(FileExistsError):
                failed.touch(exist_ok=False)
                raise RuntimeError("one of them fails")
            while not goes_on.exists():
                time.sleep(0.02)
            yield batch

    env = Environment(
        mode=mode,  # type: ignore[arg-type]
        parallelism=3,
        configuration={
            "jobmanager.execution.failover-strategy": "individual",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "1",
            "restart-strategy.fixed-delay.delay": "0 s",
        },
    )
    (
        env.from_source(SequenceSource(0, ROWS, split_rows=ROWS // 3))
        .map_in_arrow(fails_once)
        .sink_to(FileSink(str(out)))
    )
    job_id = session.submit(env)
    session.wait_until(job_id, lambda details: 1 in attempts_by_vertex(details)[0])
    goes_on.touch()
    details = session.client.wait(job_id)
    assert attempts_by_vertex(details) == [[0, 0, 1]]
    assert "one of them fails" in details.exceptions[0].summary
    values = ds.dataset(out, format="parquet").to_table()["value"]
    assert sorted(values.to_pylist()) == list(range(ROWS)), "every row once"


def batch_job(folder: Path, function: ArrowFunction, source: ArrowFunction) -> JobGraph:
    """A source with `source` chained to it → blocking → `function` → files; two subtasks each."""
    env = Environment(
        parallelism=2,
        configuration={
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "1",
            "restart-strategy.fixed-delay.delay": "0 s",
        },
    )
    (
        env.from_source(SequenceSource(0, ROWS))
        .map_in_arrow(source)
        .rebalance()
        .map_in_arrow(function)
        .sink_to(FileSink(str(folder)))
    )
    graph = env.job_graph("batch")
    edges = tuple(replace(edge, result_type=ResultType.BLOCKING) for edge in graph.edges)
    assert edges
    return replace(graph, batch=True, edges=edges)


def as_it_is(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def result_files(session: Session, job_id: str) -> list[Path]:
    """That TaskExecutors keep, in memory or on disk."""
    folders = (temporary.SHARED_MEMORY, session.cluster.directory)
    files = (path for folder in folders for path in files_below(folder))
    return [path for path in files if path.parent.name == job_id and "results" in str(path)]


def attempts_by_vertex(details: JobDetails) -> list[list[int]]:
    return [
        sorted(subtask.current.number for subtask in vertex.subtasks if subtask.current is not None)
        for vertex in details.vertices
    ]


def test_a_killed_consumer_reads_the_cached_results_again(session: Session, tmp_path: Path) -> None:
    killed, out = tmp_path / "killed", tmp_path / "out"

    def dies_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with contextlib.suppress(FileExistsError):
                killed.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    details = session.client.wait(session.client.submit(batch_job(out, dies_once, as_it_is)))
    assert attempts_by_vertex(details) == [[0, 0], [0, 1]], "only what ran in that process"
    values = ds.dataset(out, format="parquet").to_table()["value"]
    assert sorted(values.to_pylist()) == list(range(ROWS)), "every row once"


def flip(path: Path) -> None:
    """A few bytes among the rows."""
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        found = file.read(8)
        file.seek(-len(found), os.SEEK_CUR)
        file.write(bytes(byte ^ 0xFF for byte in found))


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (Path.unlink, "No such file"),
        (flip, "does not match its checksum"),
        (cut_off, "cannot be read"),
    ],
)
def test_a_lost_result_is_produced_again_from_the_same_rows(
    session: Session, tmp_path: Path, damage: Callable[[Path], None], why: str
) -> None:
    goes_on, out = tmp_path / "goes-on", tmp_path / "out"

    def waits_with_the_last(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            while batch["value"][batch.num_rows - 1].as_py() == ROWS - 1 and not goes_on.exists():
                time.sleep(0.02)
            yield batch

    job_id = session.client.submit(batch_job(out, as_it_is, waits_with_the_last))
    session.wait_until(job_id, lambda details: ExecutionState.FINISHED in details.states)
    eventually(lambda: len(result_files(session, job_id)) == 1, "its TaskExecutor has its result")
    damage(result_files(session, job_id)[0])
    goes_on.touch()
    details = session.client.wait(job_id)
    assert all(why in error.summary for error in details.exceptions), details.exceptions
    assert attempts_by_vertex(details) == [[0, 1], [1, 1]]
    values = ds.dataset(out, format="parquet").to_table()["value"]
    assert sorted(values.to_pylist()) == list(range(ROWS)), "every row once"
    eventually(lambda: not result_files(session, job_id), "no result is left")


def slots_process(session: Session, job_id: str) -> psutil.Process:
    """Which runs a task of the job."""
    where = {
        (subtask.current.task_executor_id, subtask.current.slot_index)
        for vertex in session.client.job_details(job_id).vertices
        for subtask in vertex.subtasks
        if subtask.current is not None and subtask.current.state is ExecutionState.RUNNING
    }
    task_executor_id, slot_index = sorted(where)[0]
    (pid,) = (
        t.pid for t in session.overview().task_executors if t.task_executor_id == task_executor_id
    )
    children = psutil.Process(pid).children()
    (process,) = (child for child in children if f"--slot {slot_index}" in command(child))
    return process


def task_executor(session: Session, job_id: str) -> psutil.Process:
    """Which runs a task of the job, and keeps results of it."""
    parent = slots_process(session, job_id).parent()
    assert parent is not None
    return parent


def job_master(session: Session, job_id: str) -> psutil.Process:
    return psutil.Process(job_master_pid(session, job_id))


@pytest.mark.parametrize("victim", long_after(1, [slots_process, job_master, task_executor]))
def test_no_result_is_left_behind_whoever_is_killed(
    session: Session, tmp_path: Path, victim: Callable[[Session, str], psutil.Process]
) -> None:
    goes_on, out = tmp_path / "goes-on", tmp_path / "out"

    def waits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            while not goes_on.exists():
                time.sleep(0.02)
            yield batch

    job_id = session.client.submit(batch_job(out, waits, as_it_is))
    session.wait_until(
        job_id,
        lambda details: (
            details.vertices[0].states[ExecutionState.FINISHED] == 2
            and details.vertices[1].states[ExecutionState.RUNNING] >= 1
        ),
    )
    eventually(lambda: len(result_files(session, job_id)) == 2, "results are kept")
    victim(session, job_id).kill()
    goes_on.touch()
    with contextlib.suppress(JobFailed):  # it ends with its JobMaster, unless another adopts it
        session.client.wait(job_id)
        values = ds.dataset(out, format="parquet").to_table()["value"]
        assert sorted(values.to_pylist()) == list(range(ROWS)), "every row once"
    eventually(lambda: not result_files(session, job_id), "no result is left")
    session.wait_until_all_slots_are_free()


@pytest.mark.parametrize(
    "salt", long_after(1, ["CAST(rand() * 16 AS INT)", "CAST(value % 16 AS INT)"])
)
def test_a_finished_consumer_rereads_rows_that_are_produced_differently(
    session: Session, tmp_path: Path, salt: str
) -> None:
    """All results, and the other consumer, go with their TaskExecutors."""
    first, goes_on, out = tmp_path / "first", tmp_path / "goes-on", tmp_path / "out"

    def one_after_the_other(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = f"{os.getpid()} {threading.get_native_id()}"  # both may be in one slot, in turn
        with contextlib.suppress(FileExistsError), first.open("x") as file:
            file.write(task)
        while first.read_text() != task and not goes_on.exists():
            time.sleep(0.02)
        yield from batches

    env = Environment(
        mode="batch",
        parallelism=2,
        configuration={
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "9",
            "restart-strategy.fixed-delay.delay": "0 s",
        },
    )
    (
        env.from_source(SequenceSource(0, ROWS))
        .select_expr("value", f"{salt} AS salt")
        .key_by("salt")
        .map_in_arrow(one_after_the_other)
        .sink_to(FileSink(str(out)))
    )
    job_id = session.submit(env)
    details = session.wait_until(
        job_id,
        lambda details: (
            details.vertices[1].states[ExecutionState.FINISHED] == 1
            and details.vertices[1].states[ExecutionState.RUNNING] == 1
        ),
    )
    used = {
        subtask.current.task_executor_id
        for vertex in details.vertices
        for subtask in vertex.subtasks
        if subtask.current is not None
    }
    for each in session.overview().task_executors:
        if each.task_executor_id in used:
            os.kill(each.pid, signal.SIGKILL)
    goes_on.touch()
    details = session.client.wait(job_id)
    values = ds.dataset(out, format="parquet").to_table()["value"]
    assert sorted(values.to_pylist()) == list(range(ROWS)), "every row once"
    went_on = [number == 0 for number in attempts_by_vertex(details)[1]]
    assert went_on == ([False, False] if "rand" in salt else [True, False])
    eventually(lambda: not result_files(session, job_id), "no result is left")
