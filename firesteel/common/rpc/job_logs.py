"""The gRPC service by which a process hands out the lines of a job in its logs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, TypeAlias

import grpc

from firesteel._proto import job_logs_pb2 as pb
from firesteel._proto import job_logs_pb2_grpc
from firesteel.common.ids import is_id
from firesteel.common.job_log.lines import LogLine, Selection
from firesteel.common.job_log.reader import FindLogs, JobLogReader
from firesteel.common.rpc.mapping import Wire
from firesteel.common.rpc.status import Reason, abort

LOOK_INTERVAL_S = 0.25  # for new lines
PROGRESS_INTERVAL_S = 0.5  # between messages without lines
OUTPUT_INTERVAL_S = 0.1  # both, while what a job prints is followed
LINES_MAX = 500  # of one message

LINE = Wire(LogLine, pb.JobLogLine)
SELECTION = Wire(Selection, pb.ReadJobLogsRequest, unmapped=("follow",))

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class JobLogsServicer(job_logs_pb2_grpc.JobLogsServicer):
    """`find` returns the logs that this process can read; it is called in threads."""

    def __init__(self, find: FindLogs) -> None:
        self._find = find

    async def ReadJobLogs(
        self, requests: AsyncIterator[pb.ReadJobLogsRequest], context: _Context
    ) -> AsyncIterator[pb.JobLogLines]:
        request = await anext(requests, pb.ReadJobLogsRequest())
        if not is_id(request.job_id):
            await abort(
                context,
                Reason.INVALID_REQUEST,
                f"{request.job_id[:80]!r} is not the id of a job: expected 32 hex characters",
            )
        finished = asyncio.Event()
        awaiting_end = asyncio.create_task(_end_of(requests, finished))
        try:
            async for message in read(request, self._find, finished):
                yield message
        finally:
            awaiting_end.cancel()


async def _end_of(requests: AsyncIterator[pb.ReadJobLogsRequest], finished: asyncio.Event) -> None:
    async for _ in requests:
        pass
    finished.set()


async def requests(
    request: pb.ReadJobLogsRequest, finished: asyncio.Event
) -> AsyncIterator[pb.ReadJobLogsRequest]:
    """Yields the client's side of a call, which `finished` closes."""
    yield request
    if request.follow:
        await finished.wait()


async def read(
    request: pb.ReadJobLogsRequest, find: FindLogs, finished: asyncio.Event
) -> AsyncIterator[pb.JobLogLines]:
    """Yields what is in the logs of this process; with `follow`, new lines until `finished`."""
    reader = JobLogReader(SELECTION.decode(request), find, follow=request.follow)
    look_s, progress_s = LOOK_INTERVAL_S, PROGRESS_INTERVAL_S
    if request.output:
        look_s = progress_s = OUTPUT_INTERVAL_S
    sent_at = 0.0
    while True:
        if finished.is_set():
            reader.finish()
        step = await asyncio.to_thread(reader.step)
        if step is None:
            return
        now = time.monotonic()
        if step.lines or step.notices or now - sent_at >= progress_s:
            sent_at = now
            for message in messages(step.lines, step.complete_us, step.notices):
                yield message
        if step.at_end and request.follow:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(finished.wait(), look_s)


def add_to_server(server: grpc.aio.Server, find: FindLogs) -> None:
    job_logs_pb2_grpc.add_JobLogsServicer_to_server(JobLogsServicer(find), server)  # type: ignore[no-untyped-call]


def messages(
    lines: Iterable[LogLine], complete_us: int, notices: Iterable[str] = ()
) -> Iterator[pb.JobLogLines]:
    """At least one; what it is complete to is in the last."""
    batches = [list(batch) for batch in _batched(lines)] or [[]]
    for batch in batches:
        last = batch is batches[-1]
        yield pb.JobLogLines(
            lines=map(LINE.encode, batch),
            complete_us=complete_us if last else 0,
            notices=notices if batch is batches[0] else (),
        )


def _batched(lines: Iterable[LogLine]) -> Iterator[list[LogLine]]:
    rest = iter(lines)
    while batch := list(itertools.islice(rest, LINES_MAX)):
        yield batch
