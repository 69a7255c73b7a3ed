"""Operator events on the wire. Both ends use it: the JobMaster and the executor."""

from __future__ import annotations

from typing import assert_never

from firesteel._proto import tasks_pb2
from firesteel.common.operator_messages import (
    ChunkAcknowledged,
    ChunkCollected,
    OperatorEvent,
    OperatorMessage,
    Resend,
    SplitAssigned,
    SplitRequested,
    SplitsExhausted,
    WatermarkLimit,
    WatermarkReported,
)
from firesteel.common.rpc.errors import RemoteProtocolError


def operator_event_to_proto(event: OperatorEvent) -> tasks_pb2.OperatorEvent:
    proto = tasks_pb2.OperatorEvent(
        job_id=event.job_id,
        operator_id=event.operator_id,
        subtask=event.subtask,
        attempt_id=event.attempt_id,
    )
    # SetInParent marks the field as present even where all of its values are defaults.
    match event.message:
        case SplitRequested(received=received):
            proto.request_split.received = received
            proto.request_split.SetInParent()
        case SplitAssigned(number=number, split_json=split_json, place=place):
            proto.assign_split.number = number
            proto.assign_split.split_json = split_json
            proto.assign_split.place = place
            proto.assign_split.SetInParent()
        case SplitsExhausted():
            proto.no_more_splits.SetInParent()
        case ChunkCollected(sequence=sequence, ipc_stream=ipc_stream, group=group):
            proto.collect_chunk.sequence = sequence
            proto.collect_chunk.ipc_stream = ipc_stream
            proto.collect_chunk.group = group
            proto.collect_chunk.SetInParent()
        case ChunkAcknowledged(sequence=sequence, error=error):
            proto.collect_ack.sequence = sequence
            proto.collect_ack.error = error
            proto.collect_ack.SetInParent()
        case WatermarkReported(watermark_us=watermark_us, idle=idle):
            proto.report_watermark.watermark_us = watermark_us
            proto.report_watermark.idle = idle
            proto.report_watermark.SetInParent()
        case WatermarkLimit(limit_us=limit_us):
            proto.align_watermark.limit_us = limit_us
            proto.align_watermark.SetInParent()
        case Resend():
            proto.resend.SetInParent()
        case unknown:
            assert_never(unknown)
    return proto


def operator_event_from_proto(proto: tasks_pb2.OperatorEvent) -> OperatorEvent:
    """Raises RemoteProtocolError for an event of an unknown kind."""
    return OperatorEvent(
        job_id=proto.job_id,
        operator_id=proto.operator_id,
        subtask=proto.subtask,
        attempt_id=proto.attempt_id,
        message=_message(proto),
    )


def _message(proto: tasks_pb2.OperatorEvent) -> OperatorMessage:
    match proto.WhichOneof("event"):
        case "request_split":
            return SplitRequested(received=proto.request_split.received)
        case "assign_split":
            split = proto.assign_split
            return SplitAssigned(
                number=split.number, split_json=split.split_json, place=split.place
            )
        case "no_more_splits":
            return SplitsExhausted()
        case "collect_chunk":
            chunk = proto.collect_chunk
            return ChunkCollected(
                sequence=chunk.sequence, ipc_stream=chunk.ipc_stream, group=chunk.group
            )
        case "collect_ack":
            ack = proto.collect_ack
            return ChunkAcknowledged(sequence=ack.sequence, error=ack.error)
        case "report_watermark":
            report = proto.report_watermark
            return WatermarkReported(watermark_us=report.watermark_us, idle=report.idle)
        case "align_watermark":
            return WatermarkLimit(limit_us=proto.align_watermark.limit_us)
        case "resend":
            return Resend()
        case kind:
            raise RemoteProtocolError(f"an operator event of unknown kind {kind!r}")
