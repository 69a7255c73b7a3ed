"""The vertices of a job and their subtasks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from aiohttp import web

from dispatcher.rest.flink.shown import (
    NOT_ENDED,
    Json,
    aggregated_answer,
    answer,
    counts,
    distribution,
    duration_ms,
    metrics_answer,
    now_ms,
)
from dispatcher.rest.flink.task_metrics import Rates, task_metrics, watermark_ms
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.requests import Handler, Refusal
from firesteel.client.job_details import Attempt, JobDetails, Subtask, Vertex
from firesteel.common.ids import stable_id
from firesteel.common.states import ExecutionState
from firesteel.common.task_metrics import TaskMetrics

_VERTEX = "/jobs/{job}/vertices/{vertex}"
_SUBTASK = f"{_VERTEX}/subtasks/{{subtask}}"
_UNASSIGNED = "(unassigned)"
# Statuses whose durations Flink shows.
_TIMED = (
    ExecutionState.CREATED,
    ExecutionState.SCHEDULED,
    ExecutionState.DEPLOYING,
    ExecutionState.INITIALIZING,
    ExecutionState.RUNNING,
)


class VertexRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._rates = Rates()

    def handlers(self) -> Mapping[str, Handler]:
        return {
            f"GET {_VERTEX}": self._vertex,
            f"GET {_VERTEX}/taskmanagers": self._task_managers,
            f"GET {_VERTEX}/subtasktimes": self._times,
            f"GET {_VERTEX}/accumulators": self._accumulators,
            f"GET {_VERTEX}/watermarks": self._watermarks,
            f"GET {_VERTEX}/backpressure": self._back_pressure,
            f"GET {_VERTEX}/metrics": self._metrics,
            f"GET {_VERTEX}/subtasks/accumulators": self._subtask_accumulators,
            f"GET {_VERTEX}/subtasks/metrics": self._subtasks_metrics,
            f"GET {_SUBTASK}": self._subtask,
            f"GET {_SUBTASK}/metrics": self._subtask_metrics,
            f"GET {_SUBTASK}/attempts/{{attempt}}": self._attempt,
            f"GET {_SUBTASK}/attempts/{{attempt}}/accumulators": self._attempt_accumulators,
        }

    async def _vertex(self, request: web.Request) -> web.Response:
        _, vertex = await self._find(request)
        return answer(vertex_details(vertex, now_ms()))

    async def _task_managers(self, request: web.Request) -> web.Response:
        _, vertex = await self._find(request)
        return answer(task_managers(vertex, now_ms()))

    async def _times(self, request: web.Request) -> web.Response:
        _, vertex = await self._find(request)
        return answer(subtask_times(vertex, now_ms()))

    async def _accumulators(self, request: web.Request) -> web.Response:
        _, vertex = await self._find(request)
        return answer({"id": vertex.vertex_id, "user-accumulators": []})

    async def _watermarks(self, request: web.Request) -> web.Response:
        _, vertex = await self._find(request)
        return answer(watermarks(vertex))

    async def _back_pressure(self, request: web.Request) -> web.Response:
        details, vertex = await self._find(request)
        return answer(back_pressure(vertex, self._rates.of(details, time.monotonic()), now_ms()))

    async def _metrics(self, request: web.Request) -> web.Response:
        details, vertex = await self._find(request)
        return metrics_answer(
            request,
            {
                f"{index}.{name}": value
                for index, metrics in self._task_metrics(details, vertex).items()
                for name, value in metrics.items()
            },
        )

    async def _subtasks_metrics(self, request: web.Request) -> web.Response:
        details, vertex = await self._find(request)
        wanted = _indexes(request.query.get("subtasks", ""))
        metrics = self._task_metrics(details, vertex)
        return aggregated_answer(
            request, [of for index, of in metrics.items() if not wanted or index in wanted]
        )

    async def _subtask_accumulators(self, request: web.Request) -> web.Response:
        _, vertex = await self._find(request)
        return answer(
            {
                "id": vertex.vertex_id,
                "parallelism": vertex.parallelism,
                "subtasks": [
                    {
                        "subtask": subtask.index,
                        "attempt": attempt.number,
                        "endpoint": endpoint_of(attempt),
                        "user-accumulators": [],
                    }
                    for subtask, attempt in _current(vertex)
                ],
            }
        )

    async def _subtask(self, request: web.Request) -> web.Response:
        _, vertex = await self._find(request)
        subtask = _subtask_of(request, vertex)
        return answer(attempt_details(subtask, subtask.attempts[-1], now_ms()))

    async def _subtask_metrics(self, request: web.Request) -> web.Response:
        details, vertex = await self._find(request)
        index = _subtask_of(request, vertex).index
        return metrics_answer(request, self._task_metrics(details, vertex)[index])

    async def _attempt(self, request: web.Request) -> web.Response:
        _, vertex = await self._find(request)
        subtask = _subtask_of(request, vertex)
        return answer(attempt_details(subtask, _attempt_of(request, subtask), now_ms()))

    async def _attempt_accumulators(self, request: web.Request) -> web.Response:
        _, vertex = await self._find(request)
        subtask = _subtask_of(request, vertex)
        attempt = _attempt_of(request, subtask)
        return answer(
            {
                "subtask": subtask.index,
                "attempt": attempt.number,
                "id": attempt.attempt_id,
                "user-accumulators": [],
            }
        )

    def _task_metrics(self, details: JobDetails, vertex: Vertex) -> dict[int, dict[str, float]]:
        rates = self._rates.of(details, time.monotonic())
        return {
            subtask.index: task_metrics(attempt, rates[attempt.attempt_id])
            for subtask, attempt in _current(vertex)
        }

    async def _find(self, request: web.Request) -> tuple[JobDetails, Vertex]:
        details = await self._gateway.details(request)
        return details, vertex_of(request, details)


def vertex_of(request: web.Request, details: JobDetails) -> Vertex:
    wanted = request.match_info["vertex"]
    for vertex in details.vertices:
        if vertex.vertex_id == wanted:
            return vertex
    raise Refusal(404, f"job {details.job_id} has no vertex {wanted[:80]!r}")


def _subtask_of(request: web.Request, vertex: Vertex) -> Subtask:
    wanted = request.match_info["subtask"]
    for subtask in vertex.subtasks:
        if str(subtask.index) == wanted and subtask.attempts:
            return subtask
    raise Refusal(404, f"vertex {vertex.vertex_id} has no subtask {wanted[:80]!r}")


def _attempt_of(request: web.Request, subtask: Subtask) -> Attempt:
    wanted = request.match_info["attempt"]
    for attempt in subtask.attempts:
        if str(attempt.number) == wanted:
            return attempt
    raise Refusal(404, f"subtask {subtask.index} has no attempt {wanted[:80]!r}")


def _indexes(text: str) -> set[int]:
    """Parses ranges of subtasks, such as `0,3-5`."""
    indexes: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()) or len(part) > 20:
            raise Refusal(400, f"subtasks={text[:80]!r} is not a list of ranges, such as 0,3-5")
        bounds = range(int(first), min(int(last or first), int(first) + 100_000) + 1)
        indexes.update(bounds)
    return indexes


def _current(vertex: Vertex) -> Iterable[tuple[Subtask, Attempt]]:
    return ((s, s.current) for s in vertex.subtasks if s.current is not None)


# ---- as Flink shows them


def vertex_overview(vertex: Vertex, now_ms: int) -> Json:
    attempts = [attempt for _, attempt in _current(vertex)]
    begun = [min(a.entered_ms.values()) for a in attempts if a.entered_ms]
    ended = [max(a.entered_ms.values()) for a in attempts if a.state.terminal and a.entered_ms]
    start_ms = min(begun, default=NOT_ENDED)
    end_ms = max(ended) if attempts and len(ended) == len(attempts) else 0
    return {
        "id": vertex.vertex_id,
        "slotSharingGroupId": stable_id("slot sharing group", vertex.slot_sharing_group),
        "name": vertex.name,
        "maxParallelism": vertex.max_parallelism,
        "parallelism": vertex.parallelism,
        "status": status_of(vertex.states),
        "start-time": start_ms,
        "end-time": end_ms or NOT_ENDED,
        "duration": duration_ms(start_ms, end_ms, now_ms) if begun else NOT_ENDED,
        "tasks": counts(vertex.states),
        "metrics": _io_metrics(vertex.metrics),
    }


def vertex_details(vertex: Vertex, now_ms: int) -> Json:
    attempts = list(_current(vertex))
    return {
        "id": vertex.vertex_id,
        "name": vertex.name,
        "parallelism": vertex.parallelism,
        "maxParallelism": vertex.max_parallelism,
        "now": now_ms,
        "aggregated": _aggregated([attempt for _, attempt in attempts], now_ms),
        "subtasks": [attempt_details(subtask, attempt, now_ms) for subtask, attempt in attempts],
    }


def attempt_details(subtask: Subtask, attempt: Attempt, now_ms: int) -> Json:
    start_ms = min(attempt.entered_ms.values(), default=NOT_ENDED)
    end_ms = _end_ms(attempt)
    return {
        "subtask": subtask.index,
        "status": attempt.state.name,
        "attempt": attempt.number,
        "host": attempt.host or _UNASSIGNED,
        "endpoint": endpoint_of(attempt),
        "start-time": start_ms,
        "start_time": start_ms,
        "end-time": end_ms or NOT_ENDED,
        "duration": duration_ms(start_ms, end_ms, now_ms),
        "metrics": _io_metrics(attempt.metrics),
        "taskmanager-id": attempt.task_executor_id or _UNASSIGNED,
        "status-duration": _status_durations(attempt, now_ms),
    }


def task_managers(vertex: Vertex, now_ms: int) -> Json:
    by_id: dict[str, list[Attempt]] = {}
    for _, attempt in _current(vertex):
        by_id.setdefault(attempt.task_executor_id or _UNASSIGNED, []).append(attempt)
    return {
        "id": vertex.vertex_id,
        "name": vertex.name,
        "now": now_ms,
        "taskmanagers": [
            _task_manager(task_executor_id, attempts, now_ms)
            for task_executor_id, attempts in by_id.items()
        ],
    }


def _task_manager(task_executor_id: str, attempts: Sequence[Attempt], now_ms: int) -> Json:
    start_ms = min(min(a.entered_ms.values(), default=now_ms) for a in attempts)
    ends_ms = [_end_ms(attempt) for attempt in attempts]
    end_ms = max(ends_ms) if all(ends_ms) else 0
    states = {state: sum(a.state is state for a in attempts) for state in ExecutionState}
    return {
        "host": attempts[0].host or _UNASSIGNED,
        "endpoint": attempts[0].host or _UNASSIGNED,
        "taskmanager-id": task_executor_id,
        "status": status_of(states),
        "start-time": start_ms,
        "end-time": end_ms or NOT_ENDED,
        "duration": duration_ms(start_ms, end_ms, now_ms),
        "metrics": _io_metrics(sum((a.metrics for a in attempts), TaskMetrics())),
        "status-counts": counts(states),
        "aggregated": _aggregated(attempts, now_ms),
    }


def subtask_times(vertex: Vertex, now_ms: int) -> Json:
    return {
        "id": vertex.vertex_id,
        "name": vertex.name,
        "now": now_ms,
        "subtasks": [
            {
                "subtask": subtask.index,
                "host": attempt.host or _UNASSIGNED,
                "endpoint": endpoint_of(attempt),
                "duration": duration_ms(
                    min(attempt.entered_ms.values(), default=now_ms), _end_ms(attempt), now_ms
                ),
                "timestamps": {
                    state.name: attempt.entered_ms.get(state, 0) for state in ExecutionState
                },
            }
            for subtask, attempt in _current(vertex)
        ],
    }


def watermarks(vertex: Vertex) -> list[Json]:
    """Sources, which have no input, show the watermark that they have, if any."""
    return [
        {
            "id": f"{subtask.index}.currentInputWatermark",
            "value": str(watermark_ms(attempt.metrics)),
        }
        for subtask, attempt in _current(vertex)
        if vertex.input_vertex_ids or attempt.metrics.watermark_us is not None
    ]


def back_pressure(vertex: Vertex, rates: Mapping[str, Mapping[str, float]], now_ms: int) -> Json:
    subtasks, highest = [], 0.0
    for subtask, attempt in _current(vertex):
        of = rates[attempt.attempt_id]
        ratio = of["backPressuredTimeMsPerSecond"] / 1000
        highest = max(highest, ratio)
        subtasks.append(
            {
                "subtask": subtask.index,
                "attempt-number": attempt.number,
                "backpressureLevel": _level(ratio),
                "backpressure-level": _level(ratio),
                "ratio": ratio,
                "idleRatio": of["idleTimeMsPerSecond"] / 1000,
                "busyRatio": of["busyTimeMsPerSecond"] / 1000,
            }
        )
    return {
        "status": "ok",
        "backpressureLevel": _level(highest),
        "backpressure-level": _level(highest),
        "end-timestamp": now_ms,
        "subtasks": subtasks,
    }


def _level(ratio: float) -> str:
    """Returns the level of a share of time, by Flink's limits."""
    return "ok" if ratio <= 0.1 else "low" if ratio <= 0.5 else "high"


def endpoint_of(attempt: Attempt) -> str:
    return f"{attempt.host}:{attempt.slot_index}" if attempt.host else _UNASSIGNED


def _end_ms(attempt: Attempt) -> int:
    """Returns 0 if the attempt has not ended."""
    return max(attempt.entered_ms.values(), default=0) if attempt.state.terminal else 0


def _status_durations(attempt: Attempt, now_ms: int) -> Json:
    """Returns the milliseconds in each state; -1 for states that the attempt has not entered."""
    ordered = sorted(attempt.entered_ms.items(), key=lambda entry: entry[1])
    ends_ms = [at_ms for _, at_ms in ordered[1:]] + [now_ms]
    spent_ms = {
        state: end_ms - at_ms for (state, at_ms), end_ms in zip(ordered, ends_ms, strict=False)
    }
    return {state.name: spent_ms.get(state, -1) for state in _TIMED}


def _aggregated(attempts: Sequence[Attempt], now_ms: int) -> Json:
    metrics = [_io_metrics(attempt.metrics) for attempt in attempts]
    names = [name for name in _io_metrics(TaskMetrics()) if not name.endswith("-complete")]
    durations = [_status_durations(attempt, now_ms) for attempt in attempts]
    return {
        "metrics": {name: distribution(of[name] for of in metrics) for name in names},
        "status-duration": {
            state.name: distribution(of[state.name] for of in durations) for state in _TIMED
        },
    }


def _io_metrics(metrics: TaskMetrics) -> Json:
    return {
        "read-bytes": metrics.bytes_in,
        "read-bytes-complete": True,
        "write-bytes": metrics.bytes_out,
        "write-bytes-complete": True,
        "read-records": metrics.records_in,
        "read-records-complete": True,
        "write-records": metrics.records_out,
        "write-records-complete": True,
        "accumulated-backpressured-time": int(metrics.back_pressured_ms),
        "accumulated-idle-time": int(metrics.idle_ms),
        "accumulated-busy-time": metrics.busy_ms,
    }


def status_of(states: Mapping[ExecutionState, int]) -> str:
    """Flink's rule: the most advanced state that is not reached by all tasks decides."""
    present = {state: count for state, count in states.items() if count}
    for state in (ExecutionState.FAILED, ExecutionState.CANCELING, ExecutionState.CANCELED):
        if state in present:
            return state.name
    if present.keys() == {ExecutionState.FINISHED}:
        return ExecutionState.FINISHED.name
    if present.keys() & {ExecutionState.RUNNING, ExecutionState.FINISHED}:
        return ExecutionState.RUNNING.name
    return max(present, key=lambda state: state.value, default=ExecutionState.CREATED).name
