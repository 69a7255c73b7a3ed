"""Converts complete checkpoints to their message and back."""

from __future__ import annotations

from firesteel._proto import dispatcher_pb2
from firesteel.common.checkpoints.complete import CompleteCheckpoint


def complete_checkpoint_to_proto(
    checkpoint: CompleteCheckpoint,
) -> dispatcher_pb2.CompleteCheckpoint:
    return dispatcher_pb2.CompleteCheckpoint(
        checkpoint_id=checkpoint.checkpoint_id,
        savepoint=checkpoint.savepoint,
        path=checkpoint.path,
        size_bytes=checkpoint.size_bytes,
        triggered_ms=checkpoint.triggered_ms,
        completed_ms=checkpoint.completed_ms,
        epoch=checkpoint.epoch,
    )


def complete_checkpoint_from_proto(
    message: dispatcher_pb2.CompleteCheckpoint,
) -> CompleteCheckpoint:
    return CompleteCheckpoint(
        checkpoint_id=message.checkpoint_id,
        savepoint=message.savepoint,
        path=message.path,
        size_bytes=message.size_bytes,
        triggered_ms=message.triggered_ms,
        completed_ms=message.completed_ms,
        epoch=message.epoch,
    )
