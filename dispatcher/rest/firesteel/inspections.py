"""Flame graphs of tasks and rows that they send."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from dispatcher.rest.gateway import Gateway
from dispatcher.rest.inspections import FlameGraphType, inspect, tree
from dispatcher.rest.requests import Handler, Refusal, json_body, text_of
from firesteel.common.ids import JobId, VertexId
from firesteel.common.inspections import (
    FlameGraph,
    Inspection,
    RowSampling,
    SampledRows,
    StackSampling,
    TaskInspection,
)

SAMPLING_S = 5.0
ROWS = 20


class InspectionRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "POST /firesteel/v1/jobs/{job}/flamegraph": self._flame_graph,
            "POST /firesteel/v1/jobs/{job}/rows": self._rows,
        }

    async def _flame_graph(self, request: web.Request) -> web.Response:
        body = await json_body(request, "vertex", "subtask", "seconds", "type")
        sampling = StackSampling(seconds=_number(body, "seconds", SAMPLING_S))
        kind = FlameGraphType.named(text_of(body, "type") or "full")
        graph = await self._inspect(request, body, sampling)
        assert isinstance(graph, FlameGraph)
        return web.json_response(
            {"samples": graph.samples, "seconds": graph.seconds, "root": tree([graph], kind)}
        )

    async def _rows(self, request: web.Request) -> web.Response:
        body = await json_body(request, "vertex", "subtask", "count")
        sampling = RowSampling(count=int(_number(body, "count", ROWS)))
        rows = await self._inspect(request, body, sampling)
        assert isinstance(rows, SampledRows)
        return web.json_response(shown(rows))

    async def _inspect(
        self, request: web.Request, body: Mapping[str, Any], inspection: Inspection
    ) -> FlameGraph | SampledRows:
        asked = TaskInspection(
            job_id=JobId(request.match_info["job"]),
            vertex_id=VertexId(text_of(body, "vertex")),
            subtask=int(_number(body, "subtask", 0)),
            inspection=inspection,
        )
        return await inspect(self._gateway, self._gateway.metadata(request), asked)


def shown(rows: SampledRows) -> dict[str, Any]:
    return {
        "columns": [{"name": column.name, "type": column.type} for column in rows.columns],
        "rows": [json.loads(row) for row in rows.rows],
        "note": rows.note,
    }


def _number(body: Mapping[str, Any], name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 2**31 - 1:
        raise Refusal(400, f"{name} must be a number, not {value!r}")
    return value
