"""The job's last checkpoints, for `show --checkpoints` and metrics."""

from __future__ import annotations

from firesteel._proto import job_master_pb2
from firesteel.common.checkpoints.messages import Snapshot
from firesteel.common.rpc.mapping import View
from jobmaster.core.checkpoints.checkpoint import Checkpoint, Kind
from jobmaster.core.core import JobMasterCore

_TIMES = ("start_delay_ms", "alignment_ms", "sync_ms", "async_ms")
_CHECKPOINT = View(
    Checkpoint,
    job_master_pb2.CheckpointDetails,
    given=(
        *("savepoint", "triggered_ms", "duration_ms", "acknowledged", "tasks", "subtasks", "path"),
        *_TIMES,
    ),
)
_SUBTASK = View(Snapshot, job_master_pb2.SubtaskCheckpoint, given=("task", "vertex_id", "subtask"))


def checkpoint_details(
    core: JobMasterCore, now: float, *, subtasks: bool
) -> list[job_master_pb2.CheckpointDetails]:
    """Returns the newest checkpoint first. With `subtasks`, includes each task's part."""
    coordinator = core.job.checkpoints
    checkpoints = [*coordinator.savepoints, *coordinator.history, *coordinator.pending]
    checkpoints.sort(key=lambda checkpoint: -checkpoint.checkpoint_id)
    return [_details(core, checkpoint, now, subtasks=subtasks) for checkpoint in checkpoints]


def _details(
    core: JobMasterCore, checkpoint: Checkpoint, now: float, *, subtasks: bool
) -> job_master_pb2.CheckpointDetails:
    snapshots, tasks = checkpoint.snapshots, checkpoint.plan.to_acknowledge
    slowest = {
        name: max((getattr(part, name) for part in snapshots.values()), default=0.0)
        for name in _TIMES
    }
    return _CHECKPOINT.encode(
        checkpoint,
        savepoint=checkpoint.kind is Kind.SAVEPOINT,
        triggered_ms=core.now_ms(checkpoint.triggered_at),
        duration_ms=round(checkpoint.duration_s(now) * 1000),
        acknowledged=len(snapshots),
        tasks=len(tasks),
        path=checkpoint.savepoint_path or core.job.checkpoints.path_of(checkpoint),
        subtasks=[
            _SUBTASK.encode(
                snapshots[attempt_id],
                task=execution.name,
                vertex_id=execution.vertex.job_vertex.vertex.vertex_id,
                subtask=execution.vertex.subtask,
            )
            for attempt_id, execution in tasks.items()
            if subtasks and attempt_id in snapshots
        ],
        **slowest,
    )


def checkpoint_metrics(core: JobMasterCore) -> dict[str, float]:
    """Returns metrics by Flink's names. Those of the last complete checkpoint may be missing."""
    if not core.job.checkpoints.enabled:
        return {}
    coordinator = core.job.checkpoints
    pending = len(coordinator.pending)
    values = {
        "numberOfCompletedCheckpoints": coordinator.completed,
        "numberOfFailedCheckpoints": coordinator.failed,
        "numberOfInProgressCheckpoints": pending,
        "totalNumberOfCheckpoints": coordinator.completed + coordinator.failed + pending,
    }
    last = coordinator.last_completed
    if last is not None:
        assert last.ended_at is not None, "it is complete"
        values |= {
            "lastCheckpointDuration": round(last.duration_s(last.ended_at) * 1000),
            "lastCheckpointSize": last.size_bytes,
            "lastCompletedCheckpointId": last.checkpoint_id,
            "lastCheckpointCompletedTimestamp": core.now_ms(last.ended_at),
        }
    return {name: float(value) for name, value in values.items()}
