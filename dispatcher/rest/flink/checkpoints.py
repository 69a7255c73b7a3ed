"""The checkpoints and savepoints of a job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from aiohttp import web

from dispatcher.rest.flink.shown import Json, answer, summary
from dispatcher.rest.flink.vertices import vertex_of
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.requests import Handler, Refusal
from firesteel.client.job_details import (
    CheckpointDetails,
    JobDetails,
    SubtaskCheckpoint,
    Vertex,
)
from firesteel.common.config import Configuration, options

_DETAILS = "/jobs/{job}/checkpoints/details/{checkpoint}"


class CheckpointRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "GET /jobs/{job}/checkpoints": self._checkpoints,
            "GET /jobs/{job}/checkpoints/config": self._config,
            f"GET {_DETAILS}": self._checkpoint,
            f"GET {_DETAILS}/subtasks/{{vertex}}": self._subtasks,
        }

    async def _checkpoints(self, request: web.Request) -> web.Response:
        details = await self._gateway.details(request, checkpoints=True)
        return answer(checkpoints(details))

    async def _config(self, request: web.Request) -> web.Response:
        details = await self._gateway.details(request)
        return answer(checkpoint_config(await self._gateway.configuration(request, details)))

    async def _checkpoint(self, request: web.Request) -> web.Response:
        details, checkpoint = await self._find(request)
        return answer(_checkpoint(checkpoint, details))

    async def _subtasks(self, request: web.Request) -> web.Response:
        details, checkpoint = await self._find(request)
        return answer(subtask_checkpoints(checkpoint, vertex_of(request, details)))

    async def _find(self, request: web.Request) -> tuple[JobDetails, CheckpointDetails]:
        details = await self._gateway.details(request, checkpoints=True)
        wanted = request.match_info["checkpoint"]
        for checkpoint in details.checkpoints:
            if str(checkpoint.checkpoint_id) == wanted:
                return details, checkpoint
        raise Refusal(
            404,
            f"checkpoint {wanted[:80]!r} of job {details.job_id} does not exist, or is too old",
        )


def checkpoints(details: JobDetails) -> Json:
    """The counts are those of the checkpoints that are still shown."""
    all_of_them = details.checkpoints
    completed = [c for c in all_of_them if c.state == "COMPLETED"]
    failed = [c for c in all_of_them if c.state == "FAILED"]
    savepoints = [c for c in completed if c.savepoint]
    plain = [c for c in completed if not c.savepoint]
    restored = _restored(details)
    return {
        "counts": {
            "restored": int(restored is not None),
            "total": len(all_of_them),
            "in_progress": len(all_of_them) - len(completed) - len(failed),
            "completed": len(completed),
            "failed": len(failed),
        },
        "summary": {
            "checkpointed_size": summary(c.size_bytes for c in completed),
            "state_size": summary(c.size_bytes for c in completed),
            "end_to_end_duration": summary(c.duration_ms for c in completed),
            "alignment_buffered": summary([]),
            "processed_data": summary([]),
            "persisted_data": summary([]),
        },
        "latest": {
            "completed": _checkpoint(plain[0], details) if plain else None,
            "savepoint": _checkpoint(savepoints[0], details) if savepoints else None,
            "failed": _checkpoint(failed[0], details) if failed else None,
            "restored": restored,
        },
        "history": [_checkpoint(each, details) for each in all_of_them],
    }


def _restored(details: JobDetails) -> Json | None:
    """Returns the checkpoint that the job was started from."""
    path = details.configuration.get(options.RECOVERY_PATH.key)
    if not path:
        return None
    number = re.search(r"chk-(\d+)/?$", path)
    return {
        "id": int(number[1]) if number else 0,
        "restore_timestamp": details.start_ms,
        "is_savepoint": number is None,
        "external_path": path,
    }


def _checkpoint(checkpoint: CheckpointDetails, details: JobDetails) -> Json:
    ended_ms = checkpoint.triggered_ms + checkpoint.duration_ms
    status = _status(checkpoint)
    parts: dict[str, list[SubtaskCheckpoint]] = {}
    for part in checkpoint.subtasks:
        parts.setdefault(part.vertex_id, []).append(part)
    shown = {
        "id": checkpoint.checkpoint_id,
        "status": status,
        "className": status.lower(),
        "is_savepoint": checkpoint.savepoint,
        "savepointFormat": "CANONICAL" if checkpoint.savepoint else None,
        "trigger_timestamp": checkpoint.triggered_ms,
        "latest_ack_timestamp": ended_ms if checkpoint.acknowledged else -1,
        "checkpointed_size": checkpoint.size_bytes,
        "state_size": checkpoint.size_bytes,
        "end_to_end_duration": checkpoint.duration_ms,
        "alignment_buffered": 0,
        "processed_data": 0,
        "persisted_data": 0,
        "num_subtasks": checkpoint.tasks,
        "num_acknowledged_subtasks": checkpoint.acknowledged,
        "checkpoint_type": _type(checkpoint, details),
        "tasks": {
            vertex.vertex_id: _of_vertex(checkpoint, vertex, parts[vertex.vertex_id])
            for vertex in details.vertices
            if vertex.vertex_id in parts
        },
    }
    if checkpoint.state == "FAILED":
        shown |= {"failure_timestamp": ended_ms, "failure_message": checkpoint.failure}
    if checkpoint.state == "COMPLETED":
        shown |= {"external_path": checkpoint.path or None, "discarded": False}
    return shown


def _type(checkpoint: CheckpointDetails, details: JobDetails) -> str:
    unaligned = details.configuration.get(options.CHECKPOINT_UNALIGNED.key) == "true"
    plain = "UNALIGNED_CHECKPOINT" if unaligned else "CHECKPOINT"
    return "SAVEPOINT" if checkpoint.savepoint else plain


def _status(checkpoint: CheckpointDetails) -> str:
    return checkpoint.state if checkpoint.state in ("COMPLETED", "FAILED") else "IN_PROGRESS"


def _of_vertex(
    checkpoint: CheckpointDetails, vertex: Vertex, parts: Sequence[SubtaskCheckpoint]
) -> Json:
    size_bytes = sum(part.size_bytes for part in parts)
    duration_ms = max((_duration_ms(part) for part in parts), default=0)
    return {
        "id": checkpoint.checkpoint_id,
        "status": _status(checkpoint),
        "latest_ack_timestamp": checkpoint.triggered_ms + duration_ms if parts else -1,
        "checkpointed_size": size_bytes,
        "state_size": size_bytes,
        "end_to_end_duration": duration_ms,
        "alignment_buffered": 0,
        "processed_data": 0,
        "persisted_data": 0,
        "num_subtasks": vertex.parallelism,
        "num_acknowledged_subtasks": len(parts),
    }


def _duration_ms(part: SubtaskCheckpoint) -> int:
    """Returns the time from the trigger until the part was written."""
    return round(part.start_delay_ms + part.alignment_ms + part.sync_ms + part.async_ms)


def subtask_checkpoints(checkpoint: CheckpointDetails, vertex: Vertex) -> Json:
    parts = {p.subtask: p for p in checkpoint.subtasks if p.vertex_id == vertex.vertex_id}
    of = list(parts.values())
    nothing = summary([])
    return {
        **_of_vertex(checkpoint, vertex, of),
        "summary": {
            "checkpointed_size": summary(part.size_bytes for part in of),
            "state_size": summary(part.size_bytes for part in of),
            "end_to_end_duration": summary(_duration_ms(part) for part in of),
            "checkpoint_duration": {
                "sync": summary(round(part.sync_ms) for part in of),
                "async": summary(round(part.async_ms) for part in of),
            },
            "alignment": {
                "buffered": nothing,
                "processed": nothing,
                "persisted": nothing,
                "duration": summary(round(part.alignment_ms) for part in of),
            },
            "start_delay": summary(round(part.start_delay_ms) for part in of),
        },
        "subtasks": [
            _subtask(index, parts.get(index), checkpoint) for index in range(vertex.parallelism)
        ],
    }


def _subtask(index: int, part: SubtaskCheckpoint | None, checkpoint: CheckpointDetails) -> Json:
    if part is None:
        return {"index": index, "status": "pending_or_failed"}
    return {
        "index": index,
        "status": "completed",
        "ack_timestamp": checkpoint.triggered_ms + _duration_ms(part),
        "end_to_end_duration": _duration_ms(part),
        "checkpointed_size": part.size_bytes,
        "state_size": part.size_bytes,
        "checkpoint": {"sync": round(part.sync_ms), "async": round(part.async_ms)},
        "alignment": {
            "buffered": 0,
            "processed": 0,
            "persisted": 0,
            "duration": round(part.alignment_ms),
        },
        "start_delay": round(part.start_delay_ms),
        "unaligned_checkpoint": False,
        "aborted": False,
    }


def checkpoint_config(configuration: Configuration) -> Json:
    """Jobs without periodic checkpoints have the interval 0."""
    get = configuration.get
    return {
        "mode": get(options.CHECKPOINT_MODE).replace("-", "_"),
        "interval": _ms(get(options.CHECKPOINT_INTERVAL)),
        "timeout": _ms(get(options.CHECKPOINT_TIMEOUT)),
        "min_pause": _ms(get(options.CHECKPOINT_MIN_PAUSE)),
        "max_concurrent": get(options.CHECKPOINT_MAX_CONCURRENT),
        "externalization": {
            "enabled": get(options.CHECKPOINT_RETENTION) != "NO_EXTERNALIZED_CHECKPOINTS",
            "delete_on_cancellation": get(options.CHECKPOINT_RETENTION) != "RETAIN_ON_CANCELLATION",
        },
        "state_backend": get(options.STATE_BACKEND),
        "checkpoint_storage": get(options.CHECKPOINT_DIR),
        "unaligned_checkpoints": get(options.CHECKPOINT_UNALIGNED),
        "tolerable_failed_checkpoints": get(options.CHECKPOINT_TOLERABLE_FAILURES),
        "aligned_checkpoint_timeout": _ms(get(options.CHECKPOINT_ALIGNED_TIMEOUT)),
        "checkpoints_after_tasks_finish": get(options.CHECKPOINT_AFTER_FINISH),
        "state_changelog_enabled": False,
        "changelog_storage": "",
        "changelog_periodic_materialization_interval": 0,
    }


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
