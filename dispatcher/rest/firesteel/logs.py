"""The log lines of a job, as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping

import grpc
from aiohttp import web

from dispatcher.rest.answers import encoded
from dispatcher.rest.firesteel.shown import Json
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.requests import Handler, choice_of, count_of
from firesteel._proto import job_logs_pb2
from firesteel.common.job_log.lines import LogLine
from firesteel.common.rpc.job_logs import LINE

LEVELS = ("debug", "info", "warning", "error", "critical")
MAX_LINES = 10_000
QUIET_S = 1.0
_OURS = re.compile(r"timestamp=\S+Z level=(\w+) process=\S+ ")
_JOB = re.compile(r" job_id=[0-9a-f]{32}")
_SPARK = re.compile(r"\S+Z\s+(DEBUG|INFO|WARN|ERROR|FATAL)\b")
_SPARK_LEVELS = {"WARN": "warning", "FATAL": "critical"}
_HEADERS = {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}


class LogRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        return {"GET /firesteel/v1/jobs/{job}/logs": self._logs}

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        view = LogView(
            lines=min(count_of(request, "lines", 500), MAX_LINES),
            least=choice_of(request, "level", LEVELS),
            text=request.query.get("text", ""),
            opened_us=time.time_ns() // 1_000,
        )
        task = request.query.get("task", "")
        message = job_logs_pb2.ReadJobLogsRequest(
            job_id=request.match_info["job"],
            follow=choice_of(request, "follow", ("false", "true")) == "true",
            vertices=[task] if task else [],
        )
        call = self._gateway.dispatcher.FetchLogs(message, metadata=self._gateway.metadata(request))
        try:
            batches = aiter(call)
            first = await anext(batches, None)  # an unknown job is refused with a status
            response = web.StreamResponse(headers=_HEADERS)
            await response.prepare(request)
            with contextlib.suppress(ConnectionError):  # the viewer has left
                try:
                    if first is not None:
                        await response.write(_events(view.add(first)))
                    async for batch in _or_nothing(batches):
                        lines = view.rest() if batch is None else view.add(batch)
                        await response.write(_events(lines))
                    await response.write(_events(view.rest()) + b"event: end\ndata: {}\n\n")
                except grpc.aio.AioRpcError as error:  # a browser connects again
                    why = encoded({"errors": [error.details()]})
                    await response.write(b"event: away\ndata: " + why + b"\n\n")
            return response
        finally:
            call.cancel()


async def _or_nothing(
    batches: AsyncIterator[job_logs_pb2.JobLogLines],
) -> AsyncIterator[job_logs_pb2.JobLogLines | None]:
    """Yields the batches, and None whenever none has come for `QUIET_S`: an idle job logs nothing
    that would complete the first lines.
    """
    while True:
        reading = asyncio.ensure_future(anext(batches, None))
        try:
            while not (await asyncio.wait([reading], timeout=QUIET_S))[0]:
                yield None
        finally:
            reading.cancel()  # unless it is done
        if (batch := reading.result()) is None:
            return
        yield batch


class LogView:
    """The lines that a viewer sees: the last ones when the view opens, and all later ones."""

    def __init__(self, *, lines: int, least: str, text: str, opened_us: int) -> None:
        self._least = LEVELS.index(least)
        self._text = text.lower()
        self._opened_us = opened_us
        self._old: deque[Json] | None = deque(maxlen=lines)  # None: they were shown
        self._level = "info"

    def add(self, batch: job_logs_pb2.JobLogLines) -> list[Json]:
        """Returns the lines to show now."""
        lines = [line for each in batch.lines if (line := self._line(LINE.decode(each)))]
        lines += [_notice(text) for text in batch.notices]
        if self._old is None:
            return lines
        self._old.extend(lines)
        if batch.lines and batch.complete_us < self._opened_us:
            return []
        return self.rest()

    def rest(self) -> list[Json]:
        lines, self._old = list(self._old or ()), None
        return lines

    def _line(self, line: LogLine) -> Json | None:
        text = line.text
        if ours := _OURS.match(text):
            self._level = ours[1]
            text = _JOB.sub("", text[ours.end() :], count=1)
        elif spark := _SPARK.match(text):
            self._level = _SPARK_LEVELS.get(spark[1], spark[1].lower())
        elif not text.startswith("  "):  # of a traceback
            self._level = "info"
        level = LEVELS.index(self._level) if self._level in LEVELS else LEVELS.index("info")
        if level < self._least or self._text not in text.lower():
            return None
        worker = f"@{line.task_executor_id[:8]}" if line.task_executor_id else ""
        return {
            "time_ms": line.time_us // 1_000,
            "level": LEVELS[level],
            "source": line.process + worker,
            "text": text,
        }


def _notice(text: str) -> Json:
    return {"time_ms": None, "level": "warning", "source": None, "text": text}


def _events(lines: list[Json]) -> bytes:
    return b"".join(b"data: " + encoded(line) + b"\n\n" for line in lines) or b": waiting\n\n"
