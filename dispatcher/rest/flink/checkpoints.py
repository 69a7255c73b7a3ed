"""The checkpoints and savepoints of a job."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from dispatcher.rest.flink.shown import Json, summary
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.requests import Handler
from firesteel.client.job_details import CheckpointDetails, JobDetails


class CheckpointRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        return {"GET /jobs/{job}/checkpoints": self._checkpoints}

    async def _checkpoints(self, request: web.Request) -> web.Response:
        return web.json_response(checkpoints(await self._gateway.details(request)))


def checkpoints(details: JobDetails) -> Json:
    """The counts are those of the checkpoints that are still shown."""
    all_of_them = details.checkpoints
    completed = [c for c in all_of_them if c.state == "COMPLETED"]
    failed = [c for c in all_of_them if c.state == "FAILED"]
    pending = len(all_of_them) - len(completed) - len(failed)
    savepoints = [c for c in completed if c.savepoint]
    plain = [c for c in completed if not c.savepoint]
    return {
        "counts": {
            "restored": 0,
            "total": len(all_of_them),
            "in_progress": pending,
            "completed": len(completed),
            "failed": len(failed),
        },
        "summary": {
            "checkpointed_size": summary([c.size_bytes for c in completed]),
            "state_size": summary([c.size_bytes for c in completed]),
            "end_to_end_duration": summary([c.duration_ms for c in completed]),
            "alignment_buffered": summary([]),
            "processed_data": summary([]),
            "persisted_data": summary([]),
        },
        "latest": {
            "completed": _checkpoint(plain[0]) if plain else None,
            "savepoint": _checkpoint(savepoints[0]) if savepoints else None,
            "failed": _checkpoint(failed[0]) if failed else None,
            "restored": None,
        },
        "history": [_checkpoint(each) for each in all_of_them],
    }


def _checkpoint(checkpoint: CheckpointDetails) -> Json:
    states = {"COMPLETED": "COMPLETED", "FAILED": "FAILED"}
    ended_ms = checkpoint.triggered_ms + checkpoint.duration_ms
    shown = {
        "id": checkpoint.checkpoint_id,
        "status": states.get(checkpoint.state, "IN_PROGRESS"),
        "className": checkpoint.state.lower(),
        "is_savepoint": checkpoint.savepoint,
        "savepointFormat": "CANONICAL" if checkpoint.savepoint else None,
        "trigger_timestamp": checkpoint.triggered_ms,
        "latest_ack_timestamp": ended_ms,
        "checkpointed_size": checkpoint.size_bytes,
        "state_size": checkpoint.size_bytes,
        "end_to_end_duration": checkpoint.duration_ms,
        "alignment_buffered": 0,
        "processed_data": 0,
        "persisted_data": 0,
        "num_subtasks": checkpoint.tasks,
        "num_acknowledged_subtasks": checkpoint.acknowledged,
        "checkpoint_type": "SAVEPOINT" if checkpoint.savepoint else "CHECKPOINT",
        "tasks": {},
    }
    if checkpoint.state == "FAILED":
        shown |= {"failure_timestamp": ended_ms, "failure_message": checkpoint.failure}
    return shown
