"""The checkpoints and savepoints of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from aiohttp import web

from dispatcher.rest.firesteel.shown import Json
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.requests import Handler, Refusal
from firesteel.client.job_details import CheckpointDetails, JobDetails
from firesteel.common.config import options
from firesteel.common.units import parse_duration_s

_COMPLETED, _FAILED = "COMPLETED", "FAILED"


class CheckpointRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "GET /firesteel/v1/jobs/{job}/checkpoints": self._checkpoints,
            "GET /firesteel/v1/jobs/{job}/checkpoints/{checkpoint}": self._checkpoint,
        }

    async def _checkpoints(self, request: web.Request) -> web.Response:
        async def load() -> Json:
            return checkpoints(await self._gateway.details(request))

        return await self._gateway.answer(request, load)

    async def _checkpoint(self, request: web.Request) -> web.Response:
        async def load() -> Json:
            details = await self._gateway.details(request, checkpoints=True)
            wanted = request.match_info["checkpoint"]
            for each in details.checkpoints:
                if str(each.checkpoint_id) == wanted:
                    return checkpoint_with_subtasks(each)
            raise Refusal(404, f"job {details.job_id} has no checkpoint {wanted[:80]!r} any more")

        return await self._gateway.answer(request, load)


def checkpoints(details: JobDetails) -> Json:
    """The counts are those of the checkpoints that are still shown."""
    shown = details.checkpoints
    interval = details.configuration.get(options.CHECKPOINT_INTERVAL.key)
    restored = details.configuration.get(options.RECOVERY_PATH.key)
    completed = sum(each.state == _COMPLETED for each in shown)
    failed = sum(each.state == _FAILED for each in shown)
    return {
        "interval_ms": int(parse_duration_s(interval) * 1000) if interval else None,
        "counts": {
            "completed": completed,
            "failed": failed,
            "in_progress": len(shown) - completed - failed,
            "restored": int(restored is not None),
            "total": len(shown),
        },
        "restored": {"path": restored} if restored else None,
        "checkpoints": list(map(checkpoint, shown)),
    }


def checkpoint(details: CheckpointDetails) -> Json:
    return {
        "id": str(details.checkpoint_id),
        "savepoint": details.savepoint,
        "state": details.state,
        "triggered_ms": details.triggered_ms,
        "duration_ms": details.duration_ms,
        "size_bytes": details.size_bytes,
        "acknowledged": details.acknowledged,
        "tasks": details.tasks,
        "failure": details.failure or None,
        "path": details.path or None,
        "start_delay_ms": details.start_delay_ms,
        "alignment_ms": details.alignment_ms,
        "sync_ms": details.sync_ms,
        "async_ms": details.async_ms,
    }


def checkpoint_with_subtasks(details: CheckpointDetails) -> Json:
    return {**checkpoint(details), "subtasks": [asdict(each) for each in details.subtasks]}
