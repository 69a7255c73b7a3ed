"""The lines of a job from the whole cluster: from this process and the JobMasters', whose logs are
here, from the ResourceManager and each TaskExecutor, which hand out theirs.

What cannot be had is said, as a notice between the lines. At most a few thousand lines of each
process are held.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc

from dispatcher.core.jobs import Job
from dispatcher.shell import Shell
from firesteel._proto import job_logs_pb2 as pb
from firesteel._proto import resource_manager_pb2
from firesteel._proto.job_logs_pb2_grpc import JobLogsStub
from firesteel._proto.resource_manager_pb2_grpc import ResourceManagerStub
from firesteel.common.config import options
from firesteel.common.job_log.lines import Line
from firesteel.common.job_log.merge import Merge
from firesteel.common.rpc import job_logs

CALL_TIMEOUT_S = 2.0
SILENT_S = 10.0  # nobody waits longer for a source, which sends a message a second
NEXT_S = 0.5
LOOK_INTERVAL_S = 2.0  # while following: TaskExecutors come and go
LAST_LINES_S = 1.0  # after the job's end: what its processes log meanwhile still belongs to it
LAST_OUTPUT_S = 0.1  # the same for printed lines, which reach the logs before its tasks end
OUTPUT_LAG_US = 1_000_000  # what was printed has the time of a line up to a second before it
CLOSING_S = 5.0  # then the last lines must be here within this time
DISPATCHER = "the Dispatcher"
RESOURCE_MANAGER = "the ResourceManager"


async def cluster_logs(
    shell: Shell, job: Job, request: pb.ReadJobLogsRequest
) -> AsyncIterator[pb.JobLogLines]:
    """`request` is the client's; the job is one of this Dispatcher's."""
    follow = request.follow and not job.ended
    asked = pb.ReadJobLogsRequest()
    asked.CopyFrom(request)
    asked.follow, asked.started_us = follow, job.start_ms * 1000
    collection = _Collection(shell, asked)
    end = _End(shell, job, output=request.output)
    found = False
    try:
        while not shell.stopping:
            await collection.look_for_sources()
            lines, notices = await collection.next()
            found = found or bool(lines)
            if lines or notices:
                for message in job_logs.messages(lines, 0, notices):
                    yield message
            if collection.over or (follow and end.reached(collection.merge.complete_us)):
                break
        rest = collection.merge.take(all_=True)
        last_words = collection.last_words(await _task_executors_of(shell, job))
        if not (found or rest) and job.ended and not (request.output and request.follow):
            last_words.append(_nothing_found(request))
        for message in job_logs.messages(rest, 0, last_words):
            yield message
    finally:
        await collection.close()


def _nothing_found(request: pb.ReadJobLogsRequest) -> str:
    if request.output:
        return f"the job has printed nothing that a log still has ({options.LOG_MAX_SIZE.key})"
    limits = f"logs have a limit of length ({options.LOG_MAX_SIZE.key}) and number"
    if job_logs.selection(request).of_tasks:
        return f"there is no line that names such a task; {limits} ({options.LOG_MAX.key})"
    return (
        f"no log has a line of the job any more: {limits} ({options.LOG_MAX.key}),"
        " and older lines were dropped"
    )


class _End:
    """When a job that is followed has ended, and what it logged last is there."""

    def __init__(self, shell: Shell, job: Job, *, output: bool) -> None:
        self._clock = shell.platform.clock
        self._job = job
        self._output = output
        self._ended_at: float | None = None
        self._last_us = 0

    def reached(self, complete_us: int | None) -> bool:
        now = self._clock.monotonic()
        if not self._job.ended:
            return False
        if self._ended_at is None:
            self._ended_at = now
            last_s = LAST_OUTPUT_S if self._output else LAST_LINES_S
            self._last_us = round((self._clock.time() + last_s) * 1_000_000)
        complete = complete_us is None or complete_us >= self._last_us
        if self._output:  # however long the client takes to read it
            return complete
        return complete or now - self._ended_at >= CLOSING_S


async def _task_executors_of(shell: Shell, job: Job) -> set[str]:
    """Those on which tasks of the job have run."""
    details = await shell.details(job)
    return {
        attempt.task_executor_id
        for vertex in details.vertices
        for subtask in vertex.subtasks
        for attempt in subtask.attempts
        if attempt.task_executor_id
    }


class _Collection:
    """The processes that hand out lines, each read by a task of its own."""

    def __init__(self, shell: Shell, request: pb.ReadJobLogsRequest) -> None:
        self.merge: Merge[str] = Merge()
        self._shell = shell
        self._clock = shell.platform.clock
        self._request = request
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._known: set[str] = set()  # the sources that were read, or that it was tried of
        self._look_at = 0.0
        self._notices: list[str] = []
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._waiting_since: dict[str, float] = {}  # for a source's next message
        self._complete_us: dict[str, int] = {}  # what each source has handed out
        self._has_overview = False  # of the TaskExecutors, when it was looked for them last
        self._origins: set[str] = set()  # the TaskExecutors of which there are lines
        self._lag_us = OUTPUT_LAG_US if request.output else 0

    @property
    def over(self) -> bool:
        return not self._reading

    async def look_for_sources(self) -> None:
        """Begins to read from all; later, while following, from those that are new or back."""
        now = self._clock.monotonic()
        if now < self._look_at or (self._known and not self._request.follow):
            return
        self._look_at = now + LOOK_INTERVAL_S
        self._read_from(DISPATCHER, "")
        self._has_overview = False
        address = self._shell.resource_manager
        if not address:
            if RESOURCE_MANAGER not in self._known:
                self._notices.append("no ResourceManager leads now: lines are missing")
            self._known.add(RESOURCE_MANAGER)
            return
        self._read_from(RESOURCE_MANAGER, address)
        stub: Any = ResourceManagerStub(self._shell.channel(address))  # type: ignore[no-untyped-call]
        request = resource_manager_pb2.ResourceOverviewRequest()
        follow = self._request.follow  # then it is asked again, and others have lines meanwhile
        try:
            overview = await stub.GetOverview(
                request, timeout=CALL_TIMEOUT_S if follow else SILENT_S
            )
        except grpc.aio.AioRpcError:
            return  # that it does not answer is said where it is read
        self._has_overview = True
        for executor in overview.task_executors:
            self._read_from(executor.task_executor_id, executor.address)

    async def next(self) -> tuple[list[Line], list[str]]:
        """Waits for lines or notices, at most for NEXT_S."""
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
        """Of TaskExecutors that ran tasks of the job and whose logs nobody has."""
        problem = (
            f"is gone, and its logs with it ({options.LOG_MAX.key})"
            if self._has_overview
            else "was not asked, because no ResourceManager has told where it is: lines are missing"
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
            if not self._request.follow:
                self._reading[source].cancel()
                del self._waiting_since[source]
                self._say(source, f"has not answered for {SILENT_S:g} s")

    def _say(self, source: str, problem: str) -> None:
        name = source if source in (DISPATCHER, RESOURCE_MANAGER) else f"TaskExecutor {source}"
        self._notices.append(f"{name} {problem}: lines are missing")

    def _read_from(self, source: str, address: str) -> None:
        """`address`: empty: this process's own logs."""
        if source in self._reading:
            return
        request = pb.ReadJobLogsRequest()
        request.CopyFrom(self._request)
        if sent_us := self._complete_us.get(source, 0):  # it is back
            request.after_us = max(request.after_us, sent_us + 1 - self._lag_us)
        self.merge.add(source)
        self._reading[source] = asyncio.create_task(self._read(source, address, request))

    async def _read(self, source: str, address: str, request: pb.ReadJobLogsRequest) -> None:
        problem = ""
        try:
            if address:
                stub: Any = JobLogsStub(self._shell.channel(address))  # type: ignore[no-untyped-call]
                await self._feed(source, stub.ReadJobLogs(request))
            else:
                await self._feed(source, job_logs.read(request, self._shell.logs))
        except grpc.aio.AioRpcError as error:
            problem = f"at {address} does not hand out its logs ({error.code().name})"
        except OSError as error:
            problem = f"cannot read its logs ({error})"
        finally:
            # One that follows reads on from it, or has what it left from the ResourceManager.
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
            lines = self._new(source, [job_logs.line_from_proto(line) for line in message.lines])
            self.merge.feed(source, lines, message.complete_us)
            self._complete_us[source] = max(self._complete_us.get(source, 0), message.complete_us)
            self._notices += message.notices
            self._changed.set()
            while not self.merge.wants(source):
                await self._taken.wait()
            self._waiting_since[source] = self._clock.monotonic()

    def _new(self, source: str, lines: list[Line]) -> list[Line]:
        """Without what a TaskExecutor has handed out itself before it ended."""
        self._origins.update(line.origin for line in lines)
        return [
            line
            for line in lines
            if line.origin in ("", source)
            or line.time_us > self._complete_us.get(line.origin, -1) - self._lag_us
        ]
