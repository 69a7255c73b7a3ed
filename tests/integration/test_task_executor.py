"""A real TaskExecutor with real slots. The test plays its ResourceManager and its JobMaster."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pyarrow as pa
import pytest

from firesteel import Environment
from firesteel._proto import common_pb2, job_graph_pb2, tasks_pb2
from firesteel.common.job_graph import DistributionPattern
from firesteel.common.process import Child, spawn, temporary
from firesteel.common.process.log_files import slot_log
from firesteel.common.rpc.convert import JOB_GRAPH
from firesteel.connectors import DiscardSink
from firesteel.elements import EndOfPartition
from taskexecutor.executor.exchange import Exchange, Locations
from taskexecutor.executor.exchange.security import ExchangeSecurity
from tests.credentials import folder
from tests.integration.task_executor_masters import Masters
from tests.waiting import until

JOB = "b" * 32


@dataclass(slots=True)
class Cluster:
    masters: Masters
    task_executor: Child
    directory: Path

    async def take_slot(self, allocation: str) -> Any:
        """Asks for slot 0; returns its offer, accepted."""
        self.masters.request_slot(allocation * 32, JOB, 0)
        await self.masters.resource_manager.next("slot_request_accepted")
        offers = await self.masters.job_master.next("offer_slots", timeout_s=180)
        self.masters.tell_task_executor(JOB, slots_answer={"accepted": [allocation * 32]})
        return offers.slots[0]

    async def until_free(self) -> None:
        await self.masters.resource_manager.next(
            "slot_report", lambda report: report.slots[0].allocation_id == ""
        )

    def tree(self) -> list[psutil.Process]:
        return psutil.Process(self.task_executor.pid).children(recursive=True)

    def named(self, name: str) -> psutil.Process:
        return next(process for process in self.tree() if _is_named(process, name))


@pytest.fixture
async def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    async with started(tmp_path, *getattr(request, "param", ())) as cluster:
        yield cluster


@asynccontextmanager
async def started(tmp_path: Path, *more: str) -> AsyncIterator[Cluster]:
    """A TaskExecutor; `more`: configuration, KEY=VALUE."""
    masters = Masters()
    await masters.start()
    values = (
        "taskmanager.numberOfTaskSlots=1",
        "metrics.reporter.prom.port=0",
        "heartbeat.interval=1s",
        *more,
    )
    arguments = [part for value in values for part in ("-D", value)]
    child = await spawn(
        [
            sys.executable,
            "-m",
            "taskexecutor",
            "--resource-manager",
            masters.address,
            "--dir",
            str(tmp_path),
            *arguments,
        ],
        log_path=tmp_path / "taskexecutor.log",
    )
    try:
        await masters.resource_manager.next("register")
        yield Cluster(masters, child, tmp_path)
    finally:
        child.kill()
        await child.wait()
        await masters.stop()


async def gone(processes: list[psutil.Process], within_s: float = 60.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not any(_lives(process) for process in processes):
            return True
        await asyncio.sleep(0.01)
    return False


def _is_named(process: psutil.Process, name: str) -> bool:
    try:
        return process.name().startswith(name)
    except psutil.NoSuchProcess:  # it has just ended
        return False


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_warm_slot_is_offered_used_again_and_replaced_when_it_dies(cluster):
    masters = cluster.masters
    first = await cluster.take_slot("1")

    # Once the slot is returned, the same process serves the next allocation immediately.
    masters.tell_task_executor(JOB, free_slots={"allocation_ids": ["1" * 32], "cause": "done"})
    await cluster.until_free()
    again = await cluster.take_slot("2")
    assert again.executor_id == first.executor_id

    stored = await write_result(cluster, "2")

    # kill -9 of its Python: noticed immediately, its JVM ends with it, a new process starts.
    python, jvm = cluster.named("python"), cluster.named("java")
    in_shared_memory = f"firesteel-bundles-{python.pid}-*"
    assert list(temporary.SHARED_MEMORY.glob(in_shared_memory))
    python.kill()
    lost = await masters.job_master.next("slot_lost")
    assert lost.allocation_id == "2" * 32
    assert "killed by SIGKILL" in lost.error.summary
    assert await gone([python, jvm])
    third = await cluster.take_slot("3")
    await until(
        lambda: not list(temporary.SHARED_MEMORY.glob(in_shared_memory)), "no shared memory is left"
    )
    files = cluster.directory / "tmp" / first.executor_id
    await until(lambda: not files.exists(), "no files are left")
    assert third.executor_id != first.executor_id
    # The results of its task are still served and reported.
    hello = next(m.hello for m in masters.job_master.heard if m.WhichOneof("message") == "hello")
    assert await asyncio.to_thread(rows_of, stored, hello.data_address) == 1000
    report = masters.resource_manager.heard[-1].slot_report
    assert (report.stored_partitions, report.stored_bytes) == (1, stored.size_bytes)
    (in_memory,) = temporary.SHARED_MEMORY.glob(f"firesteel-results-*/{JOB}/*")

    # kill -9 of its JVM: the process reports it before it ends.
    python, jvm = cluster.named("python"), cluster.named("java")
    jvm.kill()
    lost = await masters.job_master.next("slot_lost")
    assert f"the slot's Spark JVM (pid {jvm.pid}) is gone" in lost.error.summary
    assert await gone([python])

    # kill -9 of the TaskExecutor, while a process starts: nothing is left.
    await until(
        lambda: any(_is_named(process, "java") for process in cluster.tree()), "a JVM starts"
    )
    everything = cluster.tree()
    os.kill(cluster.task_executor.pid, signal.SIGKILL)
    assert await gone(everything)
    await cluster.task_executor.wait()
    temporary.sweep(temporary.SHARED_MEMORY)  # as the next one does
    assert not in_memory.exists()


async def write_result(cluster: Cluster, allocation: str) -> tasks_pb2.StoredPartition:
    """Runs a task that leaves a thousand numbers as a BLOCKING result."""
    env = Environment(mode="batch")
    env.from_sequence(0, 1000, column="n").rebalance().sink_to(DiscardSink())
    graph = JOB_GRAPH.encode(env.job_graph())
    source, job_master = graph.vertices[0], cluster.masters.job_master
    described = tasks_pb2.VertexDeployment(
        vertex=source,
        out_edges=graph.edges,
        out_parallelism=[1],
        out_max_parallelism=[128],
        output_schemas=[pa.schema([("n", pa.int64())]).serialize().to_pybytes()],
    )
    deployment = tasks_pb2.TaskDeployment(
        attempt_id="4" * 32, vertex_id=source.vertex_id, allocation_id=allocation * 32
    )
    submit = tasks_pb2.SubmitTasks(job_id=JOB, vertices=[described], tasks=[deployment])
    cluster.masters.tell_task_executor(JOB, submit=submit)
    asked = await job_master.next("operator_event")
    for answer in (
        {"assign_split": {"split_json": '{"start": 0, "end": 1000}'}},
        {"no_more_splits": {}},
    ):
        event = tasks_pb2.OperatorEvent(
            job_id=JOB,
            operator_id=asked.operator_id,
            subtask=asked.subtask,
            attempt_id=asked.attempt_id,
            **answer,
        )
        cluster.masters.tell_task_executor(JOB, operator_event=event)
    states = await job_master.next("task_states", lambda s: s.updates[-1].HasField("metrics"))
    assert states.updates[-1].state == common_pb2.TASK_FINISHED, states
    (stored,) = states.updates[-1].partitions
    return stored


def rows_of(stored: tasks_pb2.StoredPartition, address: str) -> int:
    arrived = threading.Event()
    keys = folder()
    own = keys.job_keys(JOB, 1)
    exchange = Exchange(
        host="127.0.0.1",
        window_bytes=2**20,
        batch_rows=1000,
        partition_timeout_s=60,
        security=ExchangeSecurity(keys_of=lambda job_id: own, find=keys.find_job_key),
    )
    gate = exchange.create_gate(
        job_id=JOB,
        result_id=stored.id.result_id,
        consumer=0,
        producers=1,
        consumers=1,
        pattern=DistributionPattern.ALL_TO_ALL,
        locations=Locations((address,), [0], [stored.id.attempt]),
        on_available=arrived.set,
    )
    rows = 0
    try:
        while (polled := gate.poll()) is None or not isinstance(polled[1], EndOfPartition):
            if polled is None:
                assert arrived.wait(60)
                arrived.clear()
            elif isinstance(polled[1], pa.RecordBatch):
                rows += polled[1].num_rows
    finally:
        exchange.close()
    return rows


@pytest.mark.long  # e2e/test_hangs.py stops processes of slots that run tasks
@pytest.mark.parametrize("cluster", [("heartbeat.timeout=8s",)], indirect=True)
async def test_a_slot_whose_process_hangs_is_freed_and_gets_a_new_one(cluster):
    """Python or the JVM is stopped, as by a debugger or a signal: the process neither answers nor
    ends. The slot has no task.
    """
    slot = await cluster.take_slot("1")
    for allocation, name, who in (
        ("2", "python", "the process (pid {}) of slot 0"),
        ("3", "java", "the slot's Spark JVM (pid {})"),
    ):
        python, jvm, hung = cluster.named("python"), cluster.named("java"), cluster.named(name)
        hung.suspend()
        lost = await cluster.masters.job_master.next("slot_lost", timeout_s=60)
        assert who.format(hung.pid) in lost.error.summary
        assert "has not answered for 8 s (heartbeat.timeout) and was killed" in lost.error.summary
        assert await gone([python, jvm])
        before, slot = slot, await cluster.take_slot(allocation)
        assert slot.executor_id != before.executor_id


async def test_a_process_that_crashes_at_its_start_is_retried_ever_more_rarely(tmp_path: Path):
    """The configured Python is not a Python interpreter."""
    python = tmp_path / "not-python"
    python.write_text("#!/bin/sh\necho 'no such thing' >&2; exit 3\n")
    python.chmod(0o755)
    async with started(tmp_path, f"python.executable={python}") as cluster:
        report = await cluster.masters.resource_manager.next(
            "slot_report", lambda report: report.slots[0].problem != ""
        )
        first_line = report.slots[0].problem.splitlines()[0]
        assert first_line.endswith("could not start: exit code 3: no such thing")
        log = tmp_path / "log" / "slot-0.log"
        await until(  # at 0, 1 and 3 s
            lambda: log.read_text().count("no such thing") >= 3, "the third attempt"
        )
        # It accepts requests until it has also seen the end of that attempt.
        reason, requests = "", 0
        async with asyncio.timeout(60):
            while first_line not in reason:
                cluster.masters.request_slot(f"{requests:032x}", JOB, 0)
                answer = await cluster.masters.resource_manager.next("slot_request_")
                reason = getattr(answer, "reason", "")  # of one that is rejected
                requests += 1
    logged = (tmp_path / "taskexecutor.log").read_text()
    assert logged.count("a slot's process cannot start") == 1


async def test_bad_plans_and_deployments_are_answered_and_sigterm_leaves_nothing(cluster):
    masters = cluster.masters
    await cluster.take_slot("1")

    # A file that cannot be downloaded.
    blob = common_pb2.BlobRef(hash="0" * 32, name="lib.py", kind=common_pb2.BLOB_FILE, size_bytes=1)
    graph = job_graph_pb2.JobGraph(job_id=JOB, blobs=[blob])
    analyze = tasks_pb2.Analyze(
        job_id=JOB,
        allocation_id="1" * 32,
        job_graph=graph,
        dispatcher_address=masters.address,
    )
    masters.tell_task_executor(JOB, analyze=analyze)
    result = await masters.job_master.next("analyze_result")
    assert "file 'lib.py' cannot be downloaded" in result.error.summary

    # An operator that cannot be opened.
    operator = job_graph_pb2.Operator(
        operator_id="1" * 32, name="bad", kind="Source", spec=b"garbage"
    )
    vertex = job_graph_pb2.JobVertex(
        vertex_id="2" * 32, name="bad", parallelism=1, max_parallelism=128, operators=[operator]
    )
    graph = job_graph_pb2.JobGraph(job_id=JOB, name="bad", vertices=[vertex])
    masters.tell_task_executor(
        JOB, analyze=tasks_pb2.Analyze(job_id=JOB, allocation_id="1" * 32, job_graph=graph)
    )
    assert (await masters.job_master.next("analyze_result")).error.summary

    deployment = tasks_pb2.TaskDeployment(
        attempt_id="3" * 32, vertex_id="2" * 32, allocation_id="1" * 32
    )
    described = tasks_pb2.VertexDeployment(vertex=vertex, output_schemas=[b""])
    masters.tell_task_executor(
        JOB, submit=tasks_pb2.SubmitTasks(job_id=JOB, vertices=[described], tasks=[deployment])
    )
    failed = await masters.job_master.next(
        "task_states", lambda s: s.updates[-1].state == common_pb2.TASK_FAILED
    )
    assert failed.updates[-1].error.summary

    # The slot survived all of it.
    masters.tell_task_executor(JOB, free_slots={"allocation_ids": ["1" * 32], "cause": "done"})
    await cluster.until_free()
    await cluster.take_slot("2")

    everything = cluster.tree()
    cluster.task_executor.signal(signal.SIGTERM)
    lost = await masters.job_master.next("slot_lost")
    assert "SIGTERM" in lost.error.summary
    assert await asyncio.wait_for(cluster.task_executor.wait(), 60) == 0
    assert await gone(everything)


async def test_in_a_pod_sigterm_waits_for_a_resource_manager_that_moves_the_tasks(tmp_path):
    log_path = tmp_path / "log"
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "taskexecutor", "--resource-manager", "127.0.0.1:1"),
            *("--dir", str(tmp_path / "te"), "-D", "taskmanager.drain-timeout=60 s"),
            *("-D", "metrics.reporter.prom.port=0"),
            stderr=log,
        )
    await until(lambda: "event=ready" in log_path.read_text(), log_path.read_text)
    process.terminate()
    assert await asyncio.wait_for(process.wait(), 60) == 0
    text = log_path.read_text()
    assert 'event="waiting until tasks have moved" cause=SIGTERM' in text
    assert 'cause="SIGTERM; no ResourceManager answers"' in text


@pytest.mark.long  # e2e/test_cancellation.py leaves a thread behind
async def test_a_process_in_which_a_thread_of_the_job_lives_on_is_replaced(cluster):
    masters = cluster.masters
    first = await cluster.take_slot("1")

    def leave_a_thread() -> None:
        def hang_here() -> None:
            threading.Event().wait()

        threading.Thread(target=hang_here, name="abandoned writer", daemon=True).start()

    class Spec:
        def __reduce__(self) -> Any:
            return leave_a_thread, ()

    operator = job_graph_pb2.Operator(
        operator_id="1" * 32, name="bad", kind="Source", spec=cloudpickle.dumps(Spec())
    )
    vertex = job_graph_pb2.JobVertex(
        vertex_id="2" * 32, name="bad", parallelism=1, max_parallelism=128, operators=[operator]
    )
    deployment = tasks_pb2.TaskDeployment(
        attempt_id="3" * 32, vertex_id="2" * 32, allocation_id="1" * 32
    )
    described = tasks_pb2.VertexDeployment(vertex=vertex, output_schemas=[b""])
    masters.tell_task_executor(
        JOB, submit=tasks_pb2.SubmitTasks(job_id=JOB, vertices=[described], tasks=[deployment])
    )
    await masters.job_master.next(
        "task_states", lambda s: s.updates[-1].state == common_pb2.TASK_FAILED
    )
    python = cluster.named("python")
    masters.tell_task_executor(JOB, free_slots={"allocation_ids": ["1" * 32], "cause": "done"})
    await cluster.until_free()
    assert await gone([python])
    logged = slot_log(cluster.directory, 0).read_text()
    assert "a thread of the job is still running" in logged
    assert "abandoned writer" in logged and "in hang_here" in logged
    again = await cluster.take_slot("2")
    assert again.executor_id != first.executor_id
