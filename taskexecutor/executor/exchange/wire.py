"""The encoding of the exchange's messages in Arrow Flight's `app_metadata`, and of stream names.
Never pickle.

A message's metadata is a sequence of records, little-endian, applied in order. A message to the
consumer may carry one record batch as its body; then exactly one of its records is BATCH. Events
sent before or after a batch may be in the same message. The consumer assigns `channel` numbers, per
stream.

    consumer → producer
    OPEN              channel, producer, attempt, consumer
    GRANT             channel, bytes, events
    CONSUMED          channel
    CLOSE             channel

    producer → consumer
    BATCH             channel, sequence, count, bytes
    WATERMARK         channel, sequence, timestamp_us
    STREAM_STATUS     channel, sequence, idle
    BARRIER           channel, sequence, checkpoint, timestamp_ms, aligned_timeout_ms, flags
    END_OF_DATA       channel, sequence, finished
    END_OF_PARTITION  channel, sequence
    FAILED            channel, length, reason (utf-8)
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from firesteel.elements import (
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    StreamEvent,
    StreamStatus,
    Watermark,
)
from taskexecutor.executor.exchange.errors import RemoteProtocolError

MAX_REASON_BYTES = 4096
_DESCRIPTOR = re.compile(rb"firesteel-exchange/1 ([0-9A-Za-z_.-]{1,64}) ([0-9A-Za-z_.-]{1,64})")

_OPEN, _GRANT, _CONSUMED, _CLOSE = 1, 2, 3, 4
_BATCH, _WATERMARK, _STATUS, _BARRIER = 16, 17, 18, 19
_END_OF_DATA, _END_OF_PARTITION, _FAILED = 20, 21, 22

_HEAD = struct.Struct("<BI")  # type, channel
_OPEN_BODY = struct.Struct("<III")
_GRANT_BODY = struct.Struct("<QI")
_BATCH_BODY = struct.Struct("<QIQ")
_SEQUENCE = struct.Struct("<Q")
_WATERMARK_BODY = struct.Struct("<Qq")
_FLAG_BODY = struct.Struct("<QB")
_BARRIER_BODY = struct.Struct("<QqqqBq")
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    channel: int
    producer: int
    attempt: int
    consumer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantCredit:
    channel: int
    size_bytes: int
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    channel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    channel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeader:
    channel: int
    sequence: int
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    channel: int
    sequence: int
    event: StreamEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    channel: int
    reason: str


ToProducer: TypeAlias = Open | GrantCredit | Consumed | Close
ToConsumer: TypeAlias = BatchHeader | EventRecord | Failed


def encode_descriptor(job_id: str, result_id: str) -> bytes:
    return b"firesteel-exchange/1 " + job_id.encode() + b" " + result_id.encode()


def decode_descriptor(command: bytes) -> tuple[str, str]:
    """Returns (job id, result id). Raises RemoteProtocolError."""
    match = _DESCRIPTOR.fullmatch(command or b"")
    if match is None:
        raise RemoteProtocolError("not a stream of this version of the Firesteel exchange")
    return match[1].decode(), match[2].decode()


def encode_to_producer(message: ToProducer) -> bytes:
    match message:
        case Open():
            return _HEAD.pack(_OPEN, message.channel) + _OPEN_BODY.pack(
                message.producer, message.attempt, message.consumer
            )
        case GrantCredit():
            return _HEAD.pack(_GRANT, message.channel) + _GRANT_BODY.pack(
                message.size_bytes, message.events
            )
        case Consumed():
            return _HEAD.pack(_CONSUMED, message.channel)
        case Close():
            return _HEAD.pack(_CLOSE, message.channel)
        case _:
            assert_never(message)


def encode_batch_header(channel: int, sequence: int, count: int, size_bytes: int) -> bytes:
    return _HEAD.pack(_BATCH, channel) + _BATCH_BODY.pack(sequence, count, size_bytes)


def encode_failed(channel: int, reason: str) -> bytes:
    text = reason.encode(errors="backslashreplace")[:MAX_REASON_BYTES]
    return _HEAD.pack(_FAILED, channel) + _LENGTH.pack(len(text)) + text


def encode_event(channel: int, sequence: int, event: StreamEvent) -> bytes:
    match event:
        case Watermark():
            return _HEAD.pack(_WATERMARK, channel) + _WATERMARK_BODY.pack(
                sequence, event.timestamp_us
            )
        case StreamStatus():
            return _HEAD.pack(_STATUS, channel) + _FLAG_BODY.pack(sequence, event.idle)
        case CheckpointBarrier():
            flags = event.savepoint | event.unaligned << 1 | event.at_least_once << 2
            timeout_ms = event.aligned_timeout_ms
            return _HEAD.pack(_BARRIER, channel) + _BARRIER_BODY.pack(
                sequence,
                event.checkpoint_id,
                event.timestamp_ms,
                -1 if timeout_ms is None else timeout_ms,
                flags,
                -1 if event.base is None else event.base,
            )
        case EndOfData():
            return _HEAD.pack(_END_OF_DATA, channel) + _FLAG_BODY.pack(sequence, event.finished)
        case EndOfPartition():
            return _HEAD.pack(_END_OF_PARTITION, channel) + _SEQUENCE.pack(sequence)
        case _:
            assert_never(event)


def decode_to_producer(metadata: bytes) -> Iterator[ToProducer]:
    """Decodes the records of a message. Raises RemoteProtocolError unless all of them are
    complete.
    """
    at = 0
    try:
        while at < len(metadata):
            kind, channel = _HEAD.unpack_from(metadata, at)
            at += _HEAD.size
            if kind == _OPEN:
                producer, attempt, consumer = _OPEN_BODY.unpack_from(metadata, at)
                at += _OPEN_BODY.size
                yield Open(channel=channel, producer=producer, attempt=attempt, consumer=consumer)
            elif kind == _GRANT:
                size_bytes, events = _GRANT_BODY.unpack_from(metadata, at)
                at += _GRANT_BODY.size
                yield GrantCredit(channel=channel, size_bytes=size_bytes, events=events)
            elif kind == _CONSUMED:
                yield Consumed(channel=channel)
            elif kind == _CLOSE:
                yield Close(channel=channel)
            else:
                raise RemoteProtocolError(f"the consumer sent a record of unknown type {kind}")
    except struct.error as error:
        raise RemoteProtocolError(f"the consumer sent a truncated record: {error}") from error


def decode_to_consumer(metadata: bytes) -> Iterator[ToConsumer]:
    """Decodes the records of a message. Raises RemoteProtocolError unless all of them are
    complete.
    """
    at = 0
    try:
        while at < len(metadata):
            kind, channel = _HEAD.unpack_from(metadata, at)
            at += _HEAD.size
            if kind == _BATCH:
                sequence, count, size_bytes = _BATCH_BODY.unpack_from(metadata, at)
                at += _BATCH_BODY.size
                yield BatchHeader(
                    channel=channel, sequence=sequence, count=count, size_bytes=size_bytes
                )
            elif kind == _FAILED:
                (length,) = _LENGTH.unpack_from(metadata, at)
                at += _LENGTH.size + length
                if at > len(metadata):
                    raise RemoteProtocolError("the producer sent a truncated reason")
                yield Failed(
                    channel=channel, reason=metadata[at - length : at].decode(errors="replace")
                )
            else:
                sequence, event, at = _decode_event(kind, metadata, at)
                yield EventRecord(channel=channel, sequence=sequence, event=event)
    except struct.error as error:
        raise RemoteProtocolError(f"the producer sent a truncated record: {error}") from error


def _decode_event(kind: int, metadata: bytes, at: int) -> tuple[int, StreamEvent, int]:
    if kind == _WATERMARK:
        sequence, timestamp_us = _WATERMARK_BODY.unpack_from(metadata, at)
        return sequence, Watermark(timestamp_us), at + _WATERMARK_BODY.size
    if kind == _STATUS:
        sequence, flag = _FLAG_BODY.unpack_from(metadata, at)
        return sequence, StreamStatus(bool(flag)), at + _FLAG_BODY.size
    if kind == _BARRIER:
        sequence, checkpoint_id, timestamp_ms, timeout_ms, flags, base = _BARRIER_BODY.unpack_from(
            metadata, at
        )
        barrier = CheckpointBarrier(
            checkpoint_id=checkpoint_id,
            timestamp_ms=timestamp_ms,
            savepoint=bool(flags & 1),
            unaligned=bool(flags & 2),
            aligned_timeout_ms=None if timeout_ms < 0 else timeout_ms,
            at_least_once=bool(flags & 4),
            base=None if base < 0 else base,
        )
        return sequence, barrier, at + _BARRIER_BODY.size
    if kind == _END_OF_DATA:
        sequence, flag = _FLAG_BODY.unpack_from(metadata, at)
        return sequence, EndOfData(bool(flag)), at + _FLAG_BODY.size
    if kind == _END_OF_PARTITION:
        (sequence,) = _SEQUENCE.unpack_from(metadata, at)
        return sequence, EndOfPartition(), at + _SEQUENCE.size
    raise RemoteProtocolError(f"the producer sent a record of unknown type {kind}")
