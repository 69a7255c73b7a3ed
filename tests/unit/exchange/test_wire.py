"""Records in Flight's metadata."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.elements import (
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    StreamEvent,
    StreamStatus,
    Watermark,
)
from taskexecutor.executor.exchange import wire
from taskexecutor.executor.exchange.errors import RemoteProtocolError

EVENTS: list[StreamEvent] = [
    Watermark(-(2**63)),
    Watermark(2**63 - 1),
    StreamStatus(True),
    StreamStatus(False),
    CheckpointBarrier(checkpoint_id=2**62, timestamp_ms=1_700_000_000_000, savepoint=True),
    CheckpointBarrier(checkpoint_id=1, timestamp_ms=0, unaligned=True),
    CheckpointBarrier(checkpoint_id=1, timestamp_ms=0, aligned_timeout_ms=0, at_least_once=True),
    EndOfData(False),
    EndOfData(True),
    EndOfPartition(),
]


def test_a_run_of_records_to_the_consumer_comes_out_as_it_went_in() -> None:
    metadata = b"".join(wire.encode_event(3, n, event) for n, event in enumerate(EVENTS))
    metadata += wire.encode_batch_header(2**32 - 1, 2**64 - 1, 7, 2**40) + wire.encode_failed(
        1, "weg — ø"
    )
    *events, header, failed = wire.decode_to_consumer(metadata)
    assert [(e.sequence, e.event) for e in events] == list(enumerate(EVENTS))  # type: ignore[union-attr]
    assert header == wire.BatchHeader(
        channel=2**32 - 1, sequence=2**64 - 1, count=7, size_bytes=2**40
    )
    assert failed == wire.Failed(channel=1, reason="weg — ø")
    assert len(wire.encode_event(0, 0, Watermark(5))) == 21


def test_a_run_of_records_to_the_producer_comes_out_as_it_went_in() -> None:
    messages: list[wire.ToProducer] = [
        wire.Open(channel=1, producer=2, attempt=3, consumer=4),
        wire.GrantCredit(channel=1, size_bytes=2**40, events=9),
        wire.Consumed(channel=1),
        wire.Close(channel=2),
    ]
    assert (
        list(wire.decode_to_producer(b"".join(map(wire.encode_to_producer, messages)))) == messages
    )


def test_long_reasons_are_cut() -> None:
    (failed,) = wire.decode_to_consumer(wire.encode_failed(0, "é" * 10_000))
    assert isinstance(failed, wire.Failed)
    assert len(failed.reason) <= wire.MAX_REASON_BYTES


@given(st.binary(max_size=200))
def test_garbage_is_the_peers_fault_and_nothing_worse(metadata: bytes) -> None:
    for decode in (wire.decode_to_consumer, wire.decode_to_producer, wire.decode_descriptor):
        try:
            decoded = decode(metadata)
            assert isinstance(decoded, tuple) or len(list(decoded)) <= 40
        except RemoteProtocolError:
            pass


def test_descriptor() -> None:
    assert wire.decode_descriptor(wire.encode_descriptor("a" * 32, "b" * 32)) == (
        "a" * 32,
        "b" * 32,
    )
    with pytest.raises(RemoteProtocolError, match="not a stream of this version"):
        wire.decode_descriptor(b"firesteel-exchange/2 a b")
