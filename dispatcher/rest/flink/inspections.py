"""Flame graphs of vertices, and thread dumps.

As in Flink, a flame graph is sampled in the background: the first request starts it, and later ones
return the last one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import grpc
from aiohttp import web

from dispatcher.rest.flink.shown import Json
from dispatcher.rest.gateway import Gateway, Metadata
from dispatcher.rest.inspections import (
    FlameGraphType,
    dump_threads,
    inspect,
    tree,
)
from dispatcher.rest.requests import Handler, Refusal, count_of
from firesteel.common.ids import JobId, VertexId
from firesteel.common.inspections import FlameGraph, StackSampling, TaskInspection, ThreadStack
from firesteel.common.states import ExecutionState

SAMPLING_S = 3.0
KEPT_S = 60.0  # a flame graph is sampled again when it is requested and older than this
MAX_KEPT = 100
MAX_SUBTASKS = 16  # of which the flame graph of a vertex shows the stacks
_TERMINATED, _WAITING = -1, -3  # in place of the time of the samples


class _Graphs(NamedTuple):
    sampling: asyncio.Task[Sequence[FlameGraph]]
    started_s: float


class FlinkInspectionRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._kept: dict[tuple[str, str, int | None], _Graphs] = {}

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "GET /jobs/{job}/vertices/{vertex}/flamegraph": self._flame_graph,
            "GET /taskmanagers/{task_manager}/thread-dump": self._task_manager_threads,
            "GET /jobmanager/thread-dump": self._master_threads,
        }

    async def _flame_graph(self, request: web.Request) -> web.Response:
        kind = FlameGraphType.named(request.query.get("type", "full"))
        subtask = None
        if "subtaskindex" in request.query:
            subtask = count_of(request, "subtaskindex", 0)
        running = await self._running(request, subtask)
        if not running:
            return web.json_response(_shown(kind, _TERMINATED))
        job_id, vertex_id = request.match_info["job"], request.match_info["vertex"]
        key, now_s = (job_id, vertex_id, subtask), time.monotonic()
        kept = self._kept.get(key)
        if kept is None or (kept.sampling.done() and now_s - kept.started_s > KEPT_S):
            self._kept = {k: g for k, g in self._kept.items() if now_s - g.started_s < 2 * KEPT_S}
            if len(self._kept) >= MAX_KEPT:
                raise Refusal(429, "too many flame graphs are sampled; try again in a minute")
            metadata = self._gateway.metadata(request)
            sampling = asyncio.create_task(self._sample(metadata, job_id, vertex_id, running))
            kept = self._kept[key] = _Graphs(sampling, now_s)
        if not kept.sampling.done():
            return web.json_response(_shown(kind, _WAITING))
        try:
            graphs = kept.sampling.result()
        except grpc.aio.AioRpcError:
            del self._kept[key]
            raise
        ended_s = time.time() - (now_s - kept.started_s) + SAMPLING_S
        return web.json_response(_shown(kind, round(ended_s * 1000), graphs))

    async def _running(self, request: web.Request, subtask: int | None) -> list[int]:
        """Returns the subtasks to sample, without those that do not run."""
        details = await self._gateway.details(request)
        vertex_id = request.match_info["vertex"]
        vertex = next((v for v in details.vertices if v.vertex_id == vertex_id), None)
        if vertex is None:
            raise Refusal(404, f"the job has no vertex {vertex_id[:80]!r}")
        return [
            s.index
            for s in vertex.subtasks
            if s.index == (s.index if subtask is None else subtask)
            and s.current is not None
            and s.current.state is ExecutionState.RUNNING
        ][:MAX_SUBTASKS]

    async def _sample(
        self, metadata: Metadata, job_id: str, vertex_id: str, subtasks: Sequence[int]
    ) -> Sequence[FlameGraph]:
        """Raises AioRpcError if no subtask could be sampled."""
        asked = [
            TaskInspection(
                job_id=JobId(job_id),
                vertex_id=VertexId(vertex_id),
                subtask=subtask,
                inspection=StackSampling(seconds=SAMPLING_S),
            )
            for subtask in subtasks
        ]
        results = await asyncio.gather(
            *(inspect(self._gateway, metadata, each) for each in asked), return_exceptions=True
        )
        graphs = [result for result in results if isinstance(result, FlameGraph)]
        if not graphs and isinstance(results[0], BaseException):
            raise results[0]
        return graphs

    async def _task_manager_threads(self, request: web.Request) -> web.Response:
        metadata = self._gateway.metadata(request)
        return _threads(
            await dump_threads(self._gateway, metadata, request.match_info["task_manager"])
        )

    async def _master_threads(self, request: web.Request) -> web.Response:
        return _threads(await dump_threads(self._gateway, self._gateway.metadata(request)))


def _shown(kind: FlameGraphType, ended_ms: int, graphs: Sequence[FlameGraph] = ()) -> Json:
    data = tree(graphs, kind) if graphs else None
    return {"endTimestamp": ended_ms, "data": data, "graphType": kind.name}


def _threads(stacks: Sequence[ThreadStack]) -> web.Response:
    return web.json_response(
        {
            "threadInfos": [
                {
                    "threadName": f"{each.process}: {each.name}",
                    "stringifiedThreadInfo": f'"{each.process}: {each.name}"\n{each.stack}',
                }
                for each in stacks
            ]
        }
    )
