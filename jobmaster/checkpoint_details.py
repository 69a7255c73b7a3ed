"""The job's last checkpoints, for `show --checkpoints` and metrics."""

from __future__ import annotations

from firesteel._proto import job_master_pb2
from jobmaster.core.checkpoints.checkpoint import Checkpoint, Kind
from jobmaster.core.core import JobMasterCore


def checkpoint_details(
    core: JobMasterCore, now: float, *, subtasks: bool
) -> list[job_master_pb2.CheckpointDetails]:
    """Returns the newest checkpoint first. With `subtasks`, includes each task's part."""
    coordinator = core.job.checkpoints
    found = [*coordinator.history, *coordinator.pending]
    found.sort(key=lambda checkpoint: -checkpoint.checkpoint_id)
    return [_details(core, checkpoint, now, subtasks=subtasks) for checkpoint in found]


def _details(
    core: JobMasterCore, checkpoint: Checkpoint, now: float, *, subtasks: bool
) -> job_master_pb2.CheckpointDetails:
    parts = checkpoint.snapshots
    return job_master_pb2.CheckpointDetails(
        checkpoint_id=checkpoint.checkpoint_id,
        savepoint=checkpoint.kind is Kind.SAVEPOINT,
        state=checkpoint.state.name,
        triggered_ms=core.now_ms(checkpoint.triggered_at),
        duration_ms=round(checkpoint.duration_s(now) * 1000),
        size_bytes=checkpoint.size_bytes,
        acknowledged=len(parts),
        tasks=len(checkpoint.plan.to_acknowledge),
        failure=checkpoint.failure,
        start_delay_ms=max((part.start_delay_ms for part in parts.values()), default=0.0),
        alignment_ms=max((part.alignment_ms for part in parts.values()), default=0.0),
        sync_ms=max((part.sync_ms for part in parts.values()), default=0.0),
        async_ms=max((part.async_ms for part in parts.values()), default=0.0),
        subtasks=[
            job_master_pb2.SubtaskCheckpoint(
                task=execution.name,
                size_bytes=parts[attempt_id].size_bytes,
                start_delay_ms=parts[attempt_id].start_delay_ms,
                alignment_ms=parts[attempt_id].alignment_ms,
                sync_ms=parts[attempt_id].sync_ms,
                async_ms=parts[attempt_id].async_ms,
            )
            for attempt_id, execution in checkpoint.plan.to_acknowledge.items()
            if subtasks and attempt_id in parts
        ],
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
