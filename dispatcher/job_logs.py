"""Collects a job's log lines from the whole cluster: this process and the JobMasters, whose logs
are on this machine, and the ResourceManager and the TaskExecutors, which serve their logs.

A notice between the lines reports each log that cannot be read. At most a few thousand lines per
process are held in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc

from dispatcher.core.submitted_jobs import SubmittedJob
from dispatcher.shell import Shell
from firesteel._proto import job_logs_pb2 as pb
from firesteel._proto import resource_manager_pb2
from firesteel._proto.job_logs_pb2_grpc import JobLogsStub
from firesteel._proto.resource_manager_pb2_grpc import ResourceManagerStub
from firesteel.common.config import options
from firesteel.common.job_log.lines import LogLine
from firesteel.common.job_log.merge import Merge
from firesteel.common.rpc import job_logs

CALL_TIMEOUT_S = 2.0
SILENT_S = 10.0  # a source sends a message per second; one that is silent longer is dropped
NEXT_S = 0.5
LOOK_INTERVAL_S = 2.0  # while following: TaskExecutors join and leave
# After the job's end: lines logged within this time still belong to it. Printed lines are in the
# logs before the tasks end.
LAST_LINES_S = 1.0
OUTPUT_LAG_US = 1_000_000  # printed text gets the time of a log line up to a second earlier
CLOSING_S = 5.0  # after the job's end: the last lines must arrive within this time
DISPATCHER = "the Dispatcher"
RESOURCE_MANAGER = "the ResourceManager"


async def cluster_logs(
    shell: Shell, job: SubmittedJob, request: pb.ReadJobLogsRequest
) -> AsyncIterator[pb.JobLogLines]:
    """Yields the lines that the client's `request` selects; the job belongs to this Dispatcher."""
    follow = request.follow and not job.ended
    asked = pb.ReadJobLogsRequest()
    asked.CopyFrom(request)
    asked.follow, asked.started_us = follow, job.start_ms * 1000
    end = _End(shell, job, output=request.output)
    found = False
    with shell.watch(job.job_id) as changed:
        collection = _Collection(shell, asked, changed)
        try:
            while not shell.stopping:
                await collection.look_for_sources()
                lines, notices = await collection.next()
                found = found or bool(lines)
                if lines or notices:
                    for message in job_logs.messages(lines, 0, notices):
                        yield message
                if collection.over or (follow and end.is_overdue):
                    break
                if follow and end.is_reached:
                    collection.finish()
            rest = collection.merge.take(all_=True)
            last_words = collection.last_words(await _task_executors_of(shell, job))
            if not (found or rest) and job.ended and not (request.output and request.follow):
                last_words.append(_nothing_found(request))
            for message in job_logs.messages(rest, 0, last_words):
                yield message
        finally:
            await collection.close()


def _nothing_found(request: pb.ReadJobLogsRequest) -> str:
    of_tasks = job_logs.SELECTION.decode(request).of_tasks
    if request.output:
        if of_tasks:
            return (
                "no log contains output of this task; output of Spark's Python workers names no"
                f" task, and logs have a limit of length ({options.LOG_MAX_SIZE.key})"
            )
        return (
            "no log contains output of the job: it printed nothing, or older output was dropped"
            f" ({options.LOG_MAX_SIZE.key})"
        )
    limits = f"logs have a limit of length ({options.LOG_MAX_SIZE.key}) and number"
    if of_tasks:
        return f"no line names this task; {limits} ({options.LOG_MAX.key})"
    return (
        f"no log contains a line of the job: {limits} ({options.LOG_MAX.key}),"
        " and older lines were dropped"
    )


class _End:
    """Knows when a followed job has no more lines."""

    def __init__(self, shell: Shell, job: SubmittedJob, *, output: bool) -> None:
        self._clock = shell.platform.clock
        self._job = job
        self._output = output
        self._ended_at: float | None = None

    @property
    def is_reached(self) -> bool:
        """Whether the lines that the logs have now are the last ones."""
        return self._passed_s >= (0.0 if self._output else LAST_LINES_S)

    @property
    def is_overdue(self) -> bool:
        """Whether the last lines are not awaited any longer. Output is awaited however long the
        client takes to read it.
        """
        return not self._output and self._passed_s >= CLOSING_S

    @property
    def _passed_s(self) -> float:
        """The time since the end; negative before it."""
        if not self._job.ended:
            return -1.0
        now = self._clock.monotonic()
        if self._ended_at is None:
            self._ended_at = now
        return now - self._ended_at


async def _task_executors_of(shell: Shell, job: SubmittedJob) -> set[str]:
    """Returns the TaskExecutors on which tasks of the job have run."""
    details = await shell.details(job)
    return {
        attempt.task_executor_id
        for vertex in details.vertices
        for subtask in vertex.subtasks
        for attempt in subtask.attempts
        if attempt.task_executor_id
    }


class _Collection:
    """The processes that serve lines. A separate task reads each of them, and sets `changed`."""

    def __init__(
        self, shell: Shell, request: pb.ReadJobLogsRequest, changed: asyncio.Event
    ) -> None:
        self.merge: Merge[str] = Merge()
        self._shell = shell
        self._clock = shell.platform.clock
        self._request = request
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._known: set[str] = set()  # sources that were read or tried
        self._look_at = 0.0
        self._notices: list[str] = []
        self._changed = changed
        self._finished = asyncio.Event()
        self._taken = asyncio.Event()
        self._waiting_since: dict[str, float] = {}  # since when a source's next message is awaited
        self._complete_us: dict[str, int] = {}  # up to when each source has sent its lines
        # Whether the last request for the list of TaskExecutors succeeded.
        self._has_overview = False
        self._origins: set[str] = set()  # the TaskExecutors that lines came from
        self._lag_us = OUTPUT_LAG_US if request.output else 0

    @property
    def over(self) -> bool:
        return not self._reading

    @property
    def _follows(self) -> bool:
        return self._request.follow and not self._finished.is_set()

    def finish(self) -> None:
        """Follows no longer: the lines that the logs have now are the last ones."""
        self._finished.set()

    async def look_for_sources(self) -> None:
        """Starts to read from all sources; while following, later also from new and returning
        ones.
        """
        now = self._clock.monotonic()
        if now < self._look_at or (self._known and not self._follows):
            return
        self._look_at = now + LOOK_INTERVAL_S
        self._read_from(DISPATCHER, "")
        self._has_overview = False
        address = self._shell.resource_manager
        if not address:
            if RESOURCE_MANAGER not in self._known:
                self._notices.append("no ResourceManager is leading: lines are missing")
            self._known.add(RESOURCE_MANAGER)
            return
        self._read_from(RESOURCE_MANAGER, address)
        stub: Any = ResourceManagerStub(self._shell.channel(address))  # type: ignore[no-untyped-call]
        request = resource_manager_pb2.ClusterOverviewRequest()
        # The request is then repeated, and lines of other sources must not wait for it.
        follow = self._request.follow
        try:
            overview = await stub.GetOverview(
                request, timeout=CALL_TIMEOUT_S if follow else SILENT_S
            )
        except grpc.aio.AioRpcError:
            return  # reading from it reports that it does not answer
        self._has_overview = True
        for executor in overview.task_executors:
            self._read_from(executor.task_executor_id, executor.address)

    async def next(self) -> tuple[list[LogLine], list[str]]:
        """Waits up to NEXT_S for lines or notices."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NEXT_S):
                await self._changed.wait()
        self._changed.clear()
        self._give_up_silent()
        notices, self._notices = self._notices, []
        lines = self.merge.take()
        taken, self._taken = self._taken, asyncio.Event()
        taken.set()
        return lines, notices

    def last_words(self, ran_on: set[str]) -> list[str]:
        """Returns notices about TaskExecutors that ran tasks of the job but whose logs are
        unavailable.
        """
        problem = (
            f"is gone, and so are its logs ({options.LOG_MAX.key})"
            if self._has_overview
            else "is at an unknown address, because no ResourceManager answered: lines are missing"
        )
        return [
            f"TaskExecutor {task_executor_id}, which ran tasks of the job, {problem}"
            for task_executor_id in sorted(ran_on - self._origins - self._known)
        ]

    async def close(self) -> None:
        tasks = list(self._reading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _give_up_silent(self) -> None:
        now = self._clock.monotonic()
        for source, since in list(self._waiting_since.items()):
            if now - since < SILENT_S:
                continue
            self.merge.pass_over(source)
            if not self._follows:
                self._reading[source].cancel()
                del self._waiting_since[source]
                self._say(source, f"has not answered for {SILENT_S:g} s")

    def _say(self, source: str, problem: str) -> None:
        name = source if source in (DISPATCHER, RESOURCE_MANAGER) else f"TaskExecutor {source}"
        self._notices.append(f"{name} {problem}: lines are missing")

    def _read_from(self, source: str, address: str) -> None:
        """Starts to read from a source. An empty `address` means this process's own logs."""
        if source in self._reading:
            return
        request = pb.ReadJobLogsRequest()
        request.CopyFrom(self._request)
        if sent_us := self._complete_us.get(source, 0):  # it has returned
            request.after_us = max(request.after_us, sent_us + 1 - self._lag_us)
        self.merge.add(source)
        self._reading[source] = asyncio.create_task(self._read(source, address, request))

    async def _read(self, source: str, address: str, request: pb.ReadJobLogsRequest) -> None:
        problem = ""
        try:
            if address:
                stub: Any = JobLogsStub(self._shell.channel(address))  # type: ignore[no-untyped-call]
                sent = job_logs.requests(request, self._finished)
                await self._feed(source, stub.ReadJobLogs(sent))
            else:
                logs = self._shell.logs
                await self._feed(source, job_logs.read(request, logs, self._finished))
        except grpc.aio.AioRpcError as error:
            problem = f"at {address} does not serve its logs ({error.code().name})"
        except OSError as error:
            problem = f"cannot read its logs ({error})"
        finally:
            # When following, the next attempt continues there, or the ResourceManager has the rest.
            if problem and (source not in self._known or not self._request.follow):
                self._say(source, problem)
            self._known.add(source)
            self._waiting_since.pop(source, None)
            self._reading.pop(source, None)
            self.merge.end(source)
            self._changed.set()

    async def _feed(self, source: str, messages: AsyncIterator[pb.JobLogLines]) -> None:
        self._waiting_since[source] = self._clock.monotonic()
        async for message in messages:
            self._waiting_since.pop(source, None)
            self._known.add(source)
            lines = self._new(source, list(map(job_logs.LINE.decode, message.lines)))
            self.merge.feed(source, lines, message.complete_us)
            self._complete_us[source] = max(self._complete_us.get(source, 0), message.complete_us)
            self._notices += message.notices
            self._changed.set()
            while not self.merge.wants(source):
                await self._taken.wait()
            self._waiting_since[source] = self._clock.monotonic()

    def _new(self, source: str, lines: list[LogLine]) -> list[LogLine]:
        """Removes lines that a TaskExecutor sent itself before it ended."""
        self._origins.update(line.task_executor_id for line in lines)
        return [
            line
            for line in lines
            if line.task_executor_id in ("", source)
            or line.time_us > self._complete_us.get(line.task_executor_id, -1) - self._lag_us
        ]
