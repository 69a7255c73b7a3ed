"""A job's lines from the cluster's processes, some of which do not answer."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest

from dispatcher import job_logs as cluster
from dispatcher.blob_store import BlobStore
from dispatcher.core.records import JobAdded, JobEnded
from dispatcher.core.submitted_jobs import Ending
from dispatcher.job_logs import cluster_logs
from dispatcher.job_store import JobStore
from dispatcher.results import ResultStore
from dispatcher.shell import Shell
from firesteel._proto import (
    common_pb2,
    job_logs_pb2,
    job_logs_pb2_grpc,
    job_master_pb2,
    resource_manager_pb2,
    resource_manager_pb2_grpc,
)
from firesteel.common.config import Configuration
from firesteel.common.ids import JobId
from firesteel.common.job_log.reader import LogFile
from firesteel.common.leader import Office
from firesteel.common.metrics import Registry
from firesteel.common.process import StartFailed
from firesteel.common.rpc import job_logs
from firesteel.common.rpc.server import bind, new_server
from firesteel.common.service.platform import SYSTEM, Process
from firesteel.common.states import JobStatus
from firesteel.high_availability.retriever import Retriever

JOB, NEAR, FAR, GONE = JobId("a" * 32), "1" * 32, "2" * 32, "3" * 32
SOON_S = 60.0


class NoProcesses:
    """A machine on which no process starts."""

    pid = os.getpid()

    async def spawn(self, argv: Sequence[str], **how: object) -> Process:
        raise StartFailed("no process starts here")

    def kill(self, pid: int) -> None:
        raise AssertionError("there are no processes")


class ResourceManager(resource_manager_pb2_grpc.ResourceManagerServicer):
    """Knows TaskExecutors."""

    def __init__(self) -> None:
        self.task_executors: dict[str, str] = {}  # their addresses
        self.answers_after_s = 0.0
        self.answers = True

    async def GetOverview(self, request: Any, context: Any) -> Any:
        if not self.answers:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "")
        await asyncio.sleep(self.answers_after_s)
        return resource_manager_pb2.ClusterOverview(
            task_executors=[
                resource_manager_pb2.TaskExecutorOverview(task_executor_id=name, address=address)
                for name, address in self.task_executors.items()
            ]
        )


class Hanging(job_logs_pb2_grpc.JobLogsServicer):
    """A process that is stopped."""

    async def ReadJobLogs(self, request: Any, context: Any) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield job_logs_pb2.JobLogLines()


class Dying(job_logs_pb2_grpc.JobLogsServicer):
    """A process that is killed while it sends its lines."""

    async def ReadJobLogs(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield job_logs_pb2.JobLogLines(lines=[job_logs_pb2.JobLogLine(text="event=first")])
        await context.abort(grpc.StatusCode.UNAVAILABLE, "")


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.resource_manager = ResourceManager()
        self.store = JobStore(JobStore.sqlite_url(folder))
        self.store.persist([JobAdded(job_id=JOB, name="a job", graph_id="g", start_ms=1)])
        self.servers: list[grpc.aio.Server] = []

    async def start(self) -> None:
        server = new_server([])
        resource_manager_pb2_grpc.add_ResourceManagerServicer_to_server(  # type: ignore[no-untyped-call]
            self.resource_manager, server
        )
        job_logs.add_to_server(
            server,
            lambda: {p: LogFile(task_executor_id=GONE) for p in self.folder.glob("gone*.log")},
        )
        address = await self._serve(server)
        conf = Configuration.load()
        self.shell = Shell(
            conf=conf,
            address="",
            resource_manager=address,
            store=self.store,
            blobs=BlobStore(self.folder / "blobs", 1000),
            results=ResultStore(self.folder / "spool"),
            log_directory=self.folder / "logs",
            registry=Registry.from_configuration(conf),
            host="here",
            platform=replace(SYSTEM, processes=NoProcesses()),
        )
        self.job = self.shell.core.jobs[JOB]

    async def task_executor(self, name: str, log: Path) -> None:
        server = new_server([])
        job_logs.add_to_server(server, lambda: {log: LogFile(task_executor_id=name)})
        self.resource_manager.task_executors[name] = await self._serve(server)

    async def wrong(self, name: str, logs: job_logs_pb2_grpc.JobLogsServicer) -> None:
        server = new_server([])
        job_logs_pb2_grpc.add_JobLogsServicer_to_server(logs, server)  # type: ignore[no-untyped-call]
        self.resource_manager.task_executors[name] = await self._serve(server)

    async def _serve(self, server: grpc.aio.Server) -> str:
        address = bind(server, "127.0.0.1", 0)
        await server.start()
        self.servers.append(server)
        return address

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        with open(path, "a") as file:
            file.write(f"timestamp={now} level=info process=p[1] event={text} job_id={JOB}\n")
        return path

    def print(self, name: str, text: str) -> Path:
        path = self.folder / name
        with open(path, "a") as file:
            file.write(f"stdout: event={text}\n")
        return path

    def end_job(self, ran_on: Sequence[str] = ()) -> None:
        attempts = [
            job_master_pb2.ExecutionDetails(task_executor_id=name, state=common_pb2.TASK_FAILED)
            for name in ran_on
        ]
        subtask = job_master_pb2.SubtaskDetails(attempts=attempts)
        details = job_master_pb2.JobDetails(
            job_id=JOB,
            status=common_pb2.JOB_FAILED,
            vertices=[job_master_pb2.VertexDetails(subtasks=[subtask])],
        )
        ended = JobEnded(
            job_id=JOB,
            status=JobStatus.FAILED,
            end_ms=2,
            final_details=details.SerializeToString(),
        )
        self.store.persist([ended])
        self.job.end(Ending.JOB_MASTER_LOST, 0.0)

    @asynccontextmanager
    async def logs(self, **request: Any) -> AsyncIterator[AsyncIterator[str]]:
        """The events that were logged, and the notices."""

        async def events() -> AsyncIterator[str]:
            asked = job_logs_pb2.ReadJobLogsRequest(job_id=JOB, **request)
            async with aclosing(cluster_logs(self.shell, self.job, asked)) as messages:  # type: ignore[type-var]
                async for message in messages:
                    for line in message.lines:
                        yield line.text.partition("event=")[2].partition(" ")[0]
                    for notice in message.notices:
                        yield notice

        async with aclosing(events()) as found, asyncio.timeout(SOON_S):  # type: ignore[type-var]
            yield found

    async def stop(self) -> None:
        await self.shell.close()
        for server in self.servers:
            await server.stop(0)
        self.store.close()


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Cluster]:
    here = Cluster(tmp_path)
    await here.start()
    yield here
    await here.stop()


async def test_lines_of_all_processes_in_order_and_what_is_missing(
    here: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "SILENT_S", 2.0)
    for number in range(3):
        here.write("logs/jobmaster-1-1.log", f"master-{number}")
        near = here.write("near.log", f"near-{number}")
        here.write("gone.log", f"gone-{number}")
    await here.task_executor(NEAR, near)
    await here.wrong(FAR, Hanging())
    here.resource_manager.task_executors["4" * 32] = "127.0.0.1:1"
    here.end_job(ran_on=[NEAR, FAR, GONE, "5" * 32])
    async with here.logs(follow=True) as found:  # of a job that has ended, there is no more
        told = [text async for text in found]
    assert [text for text in told if " " not in text] == [
        f"{process}-{number}" for number in range(3) for process in ("master", "near", "gone")
    ]
    assert sorted(text for text in told if " " in text) == [
        f"TaskExecutor {FAR} has not answered for 2 s: lines are missing",
        f"TaskExecutor {'4' * 32} at 127.0.0.1:1 does not serve its logs (UNAVAILABLE):"
        " lines are missing",
        f"TaskExecutor {'5' * 32}, which ran tasks of the job, is gone, and so are its logs"
        " (env.log.max)",
    ]


async def test_a_busy_resource_manager_may_be_late_to_tell_the_task_executors(
    here: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "CALL_TIMEOUT_S", 0.05)
    here.resource_manager.answers_after_s = 0.3
    await here.task_executor(NEAR, here.write("near.log", "near"))
    here.end_job(ran_on=[NEAR])
    async with here.logs() as found:
        assert [text async for text in found] == ["near"]


async def test_no_line_comes_twice_while_no_resource_manager_leads(here: Cluster) -> None:
    here.shell._resource_manager = Retriever(Office.RESOURCE_MANAGER)
    here.write("logs/jobmaster-1-1.log", "master")
    here.end_job()
    async with here.logs() as found:
        assert sorted([text async for text in found]) == [
            "master",
            "no ResourceManager is leading: lines are missing",
        ]


async def test_an_executor_is_not_called_gone_if_it_was_not_searched(
    here: Cluster,
) -> None:
    here.resource_manager.answers = False
    here.write("logs/jobmaster-1-1.log", "master")
    await here.task_executor(NEAR, here.write("near.log", "near"))
    here.end_job(ran_on=[NEAR])
    async with here.logs() as found:
        assert [text async for text in found] == [
            "master",
            f"TaskExecutor {NEAR}, which ran tasks of the job, is at an unknown address, because no"
            " ResourceManager answered: lines are missing",
        ]


async def test_what_a_process_that_dies_has_not_handed_out_is_missing(here: Cluster) -> None:
    await here.wrong(NEAR, Dying())
    here.end_job(ran_on=[NEAR])
    async with here.logs() as found:
        told = [text async for text in found]
    (notice,) = [text for text in told if text != "first"]
    assert re.fullmatch(f"TaskExecutor {NEAR} at .* does not serve .*: lines are missing", notice)


async def test_one_that_follows_gets_lines_as_they_come_until_the_job_has_ended(
    here: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "LOOK_INTERVAL_S", 0.0)
    async with here.logs(follow=True) as found:
        here.write("logs/jobmaster-1-1.log", "begins")
        assert await anext(found) == "begins"
        near = here.write("near.log", "near")
        await here.task_executor(NEAR, near)  # it joins
        assert await anext(found) == "near"
        here.end_job()
        here.write("logs/jobmaster-1-1.log", "ends")
        assert [text async for text in found] == ["ends"]


async def test_the_end_of_a_job_is_the_last_look_at_what_it_printed(
    here: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_logs, "OUTPUT_INTERVAL_S", 10 * SOON_S)
    await here.task_executor(NEAR, here.write("near.log", "serving"))
    here.print("near.log", "first")
    async with here.logs(follow=True, output=True) as found:
        assert await anext(found) == "first"
        here.print("near.log", "last")
        here.end_job()
        assert [text async for text in found] == ["last"]


async def test_a_process_that_is_silent_at_the_end_is_told(
    here: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "SILENT_S", 1.0)
    await here.wrong(NEAR, Hanging())
    await here.task_executor(FAR, here.write("far.log", "serving"))
    here.print("far.log", "first")
    async with here.logs(follow=True, output=True) as found:
        assert await anext(found) == "first"
        here.end_job()
        assert [text async for text in found] == [
            f"TaskExecutor {NEAR} has not answered for 1 s: lines are missing"
        ]


async def test_a_slow_reader_gets_everything_that_a_job_printed(
    here: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "LOOK_INTERVAL_S", 0.0)
    monkeypatch.setattr(cluster, "CLOSING_S", 0.0)
    near = here.write("near.log", "serving")
    await here.task_executor(NEAR, near)
    async with here.logs(follow=True, output=True) as found:
        here.print("near.log", "first")
        assert await anext(found) == "first"
        rows = [str(number) for number in range(5_000)]
        with open(near, "a") as file:
            file.writelines(f"stdout: event={row}\n" for row in rows)
        here.end_job()
        assert [text async for text in found] == rows
    async with here.logs(follow=True, output=True) as found:
        assert [text async for text in found] == ["first", *rows]


async def test_a_job_without_output_is_no_news_to_those_who_follow_it(here: Cluster) -> None:
    await here.task_executor(NEAR, here.write("near.log", "serving"))
    here.end_job()
    async with here.logs(output=True) as found:
        assert [text async for text in found] == [
            "no log contains output of the job: it printed nothing, or older output was dropped (env.log.max-size)"
        ]
    async with here.logs(output=True, follow=True) as found:
        assert [text async for text in found] == []


async def test_of_a_task_executor_that_ends_no_line_comes_twice(
    here: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "LOOK_INTERVAL_S", 0.0)
    path = here.write("te.log", "one")
    await here.task_executor(GONE, path)
    async with here.logs(follow=True) as found:
        assert await anext(found) == "one"
        del here.resource_manager.task_executors[GONE]
        await here.servers.pop().stop(0)
        here.write("te.log", "two")
        path.rename(here.folder / "gone.log")  # the ResourceManager has it from now on
        told = []
        while "two" not in told:
            told.append(await anext(found))
        assert "one" not in told


async def test_an_empty_log_is_stated_explicitly(here: Cluster) -> None:
    here.end_job()
    async with here.logs() as found:
        assert [text async for text in found] == [
            "no log contains a line of the job: logs have a limit of length"
            " (env.log.max-size) and number (env.log.max), and older lines were dropped"
        ]
    async with here.logs(vertices=["Clean"]) as found:
        assert "no line names this task" in await anext(found)
