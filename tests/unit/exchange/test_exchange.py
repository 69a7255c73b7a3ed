"""Whole exchanges: within one process, and over real Flight between two of them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from firesteel.common.job_graph import Partitioner
from firesteel.elements import CheckpointBarrier, EndOfData, EndOfPartition, StreamStatus, Watermark
from taskexecutor.executor.exchange import (
    BlockReason,
    Exchange,
    ExchangeClosed,
    PartitionAbandoned,
    PartitionFailed,
    ResultPartition,
    SchemaChanged,
    wire,
)
from tests.unit.exchange.conftest import values_of
from tests.waiting import eventually

WINDOW_BYTES = 64 * 1024  # as in conftest
ALL_EVENTS = [
    Watermark(-5),
    StreamStatus(True),
    StreamStatus(False),
    CheckpointBarrier(checkpoint_id=7, timestamp_ms=123, savepoint=True, unaligned=True),
    EndOfData(finished=False),
]
Numbers = Callable[[int, int], pa.RecordBatch]
InThread = Callable[[Callable[[], None]], Any]


def finish(partition: ResultPartition) -> None:
    partition.emit_event(EndOfPartition())
    partition.finish()
    partition.close()


def test_batches_and_events_arrive_in_order(
    pair: Any, numbers: Numbers, in_thread: InThread
) -> None:
    consumer = pair.consumer()
    partition = pair.partition()

    def task() -> None:
        partition.emit_event(Watermark(0))  # before there is a schema
        for n in range(300):
            partition.emit(numbers(n * 100, 100))
            if n % 10 == 0:
                partition.emit_event(Watermark(n))
        for event in ALL_EVENTS:
            partition.emit_event(event)
        finish(partition)

    producer = in_thread(task)
    elements = consumer.drain()
    assert producer.wait() is None
    assert values_of(elements) == list(range(30_000))
    events = [e for _, e in elements if not isinstance(e, pa.RecordBatch)]
    assert events == [
        Watermark(0),
        *(Watermark(n) for n in range(0, 300, 10)),
        *ALL_EVENTS,
        EndOfPartition(),
    ]
    seen = 0
    for _, element in elements[1:]:  # each watermark behind exactly the rows it followed
        if isinstance(element, pa.RecordBatch):
            seen += element.num_rows
        elif isinstance(element, Watermark) and element.timestamp_us >= 0:
            assert seen == (element.timestamp_us + 1) * 100
    assert partition.records_out == 30_000
    assert partition.bytes_out == consumer.gate.bytes_in
    assert partition.out_pool_usage == consumer.gate.in_pool_usage == 0.0


@pytest.mark.parametrize("partitioner", Partitioner)
@pytest.mark.parametrize(("producers", "consumers"), [(2, 2), (1, 3), (3, 1)])
def test_every_partitioner_delivers_every_row(
    pair: Any, in_thread: InThread, partitioner: Partitioner, producers: int, consumers: int
) -> None:
    shape = {"partitioner": partitioner, "producers": producers, "consumers": consumers}
    partitions = [pair.partition(p, key_columns=("n",), **shape) for p in range(producers)]
    readers = [pair.consumer(c, **shape) for c in range(consumers)]
    got: list[list[Any]] = [[] for _ in readers]

    def produce(p: int) -> None:
        for i in range(20):
            partitions[p].emit(
                pa.record_batch({"n": np.arange(1000) + i * 1000, "p": np.full(1000, p)})
            )
            partitions[p].emit_event(Watermark(i))
        finish(partitions[p])

    def consume(c: int) -> None:
        got[c] = readers[c].drain()

    tasks = [in_thread(lambda p=p: produce(p)) for p in range(producers)] + [
        in_thread(lambda c=c: consume(c)) for c in range(consumers)
    ]
    assert [task.wait() for task in tasks] == [None] * len(tasks)
    copies = {Partitioner.BROADCAST: consumers, Partitioner.WATERMARKS: 0}.get(partitioner, 1)
    together = sorted(
        (n, p)
        for elements in got
        for n, p in zip(values_of(elements), values_of(elements, "p"), strict=True)
    )
    assert together == sorted(
        (n, p) for n in range(20_000) for p in range(producers) for _ in range(copies)
    )
    for reader, elements in zip(readers, got, strict=True):
        for channel, producer in enumerate(reader.gate.producers):
            own = [e for i, e in elements if i == channel]
            assert [e for e in own if isinstance(e, Watermark)] == [Watermark(i) for i in range(20)]
            assert {
                p for e in own if isinstance(e, pa.RecordBatch) for p in e.column("p").to_pylist()
            } <= {producer.subtask}
            assert values_of([(0, e) for e in own]) == sorted(values_of([(0, e) for e in own])), (
                "order within a channel"
            )


BATCHES = {
    "dictionary": [
        pa.record_batch({"d": pa.array(values, pa.string()).dictionary_encode()})
        for values in (["a", "b", None], ["c"], [], ["a", "a"], ["b", "z", "c"])
    ],
    "nested": [
        pa.record_batch({"s": pa.array([{"l": [i, None], "m": [("k", {"x": i})]}, None], pa.struct({
            "l": pa.list_(pa.int64()), "m": pa.map_(pa.string(), pa.struct({"x": pa.int32()}))}))})
        for i in range(5)
    ],
    "nested dictionary": [
        pa.record_batch({
            "l": pa.ListArray.from_arrays([0, 1, 2], pa.array(values).dictionary_encode())
        })
        for values in (["a", "b"], ["c", "c"])
    ],
    "no columns": [
        pa.record_batch({"n": [1, 2, 3]}).select([]),
        pa.record_batch({"n": [1]}).select([]),
    ],
    "no rows": [
        pa.record_batch({"n": pa.array([], pa.int64())}),
        pa.record_batch({"n": pa.array([1])}),
    ],
    "types": [
        pa.record_batch({
            "decimal": pa.array([None, 1], pa.decimal128(20, 2)),
            "time": pa.array([0, 1], pa.timestamp("us", tz="Europe/Oslo")),
            "bool": [True, None],
            "null": pa.nulls(2),
            "view": pa.array(["a" * 20, None], pa.string_view()),
            "union": pa.UnionArray.from_dense(
                pa.array([0, 1], pa.int8()),
                pa.array([0, 0], pa.int32()),
                [pa.array([1]), pa.array(["x"])],
            ),
        })
    ] * 3,
    "slices": [pa.record_batch({"s": [str(i) for i in range(100)]}).slice(i, 3) for i in range(90)],
}  # fmt: skip


@pytest.mark.parametrize("name", BATCHES)
def test_batches_of_every_shape_survive(pair: Any, in_thread: InThread, name: str) -> None:
    partition = pair.partition()
    for batch in BATCHES[name]:
        partition.emit(batch)  # they queue up and are coalesced where possible
    consumer = pair.consumer()
    producer = in_thread(lambda: finish(partition))
    batches = [e for _, e in consumer.drain() if isinstance(e, pa.RecordBatch)]
    assert producer.wait() is None
    assert [b.schema for b in batches] == [BATCHES[name][0].schema] * len(batches)
    assert sum(b.num_rows for b in batches) == sum(b.num_rows for b in BATCHES[name])
    assert [row for b in batches for row in b.to_pylist()] == [
        row for b in BATCHES[name] for row in b.to_pylist()
    ]
    for batch in batches:
        batch.validate(full=True)


def test_within_a_process_the_very_same_batch_arrives(
    new_exchange: Callable[..., Exchange], new_pair: Any, numbers: Numbers
) -> None:
    exchange = new_exchange()
    pair = new_pair(exchange, exchange)
    partition, consumer = pair.partition(), pair.consumer()
    sent = [numbers(n, 10) for n in range(3)]
    for batch in sent:
        partition.emit(batch)
    received = [consumer.next()[1] for _ in sent]
    assert all(a is b for a, b in zip(sent, received, strict=True))


def test_streams_share_one_connection(
    network: Any, numbers: Numbers, exchange_threads: Callable[[], list[str]]
) -> None:
    shape = {"partitioner": Partitioner.REBALANCE, "producers": 2, "consumers": 3}
    partitions = [
        network.partition(p, result_id=r, **shape) for r in ("r1", "r2") for p in range(2)
    ]
    readers = [network.consumer(c, result_id=r, **shape) for r in ("r1", "r2") for c in range(3)]
    for partition in partitions:
        partition.emit(numbers(0, 1))
        partition.emit_event(EndOfPartition())
    streams = sorted(name for name in exchange_threads() if "reader" in name)
    assert streams == ["exchange-reader-r1", "exchange-reader-r2"], "one stream per result"
    port = int(network.producing.address.rpartition(":")[2])

    def connections() -> int:
        return sum(
            1 for c in psutil.Process().net_connections() if c.raddr and c.raddr.port == port
        )

    eventually(lambda: connections() == 1, "there is one connection for all of them")
    assert sum(len(values_of(reader.drain())) for reader in readers) == 4
    assert connections() <= 1


def test_a_producer_blocks_at_its_window_and_continues_with_credit(
    pair: Any, numbers: Numbers, in_thread: InThread
) -> None:
    partition, consumer = pair.partition(), pair.consumer()
    emitting_ns: list[int] = []

    def task() -> None:
        started_ns = time.perf_counter_ns()
        for n in range(100):
            partition.emit(numbers(n * 1000, 1000))
        emitting_ns.append(time.perf_counter_ns() - started_ns)
        finish(partition)

    producer = in_thread(task)
    eventually(lambda: partition.blocked and partition.bytes_out > 0.9 * WINDOW_BYTES)
    emitted, blocked_ns = partition.bytes_out, partition.blocked_ns
    time.sleep(0.05)
    assert partition.bytes_out == emitted <= WINDOW_BYTES, "it must wait now"
    assert partition.blocked
    assert partition.blocked_ns >= blocked_ns + 50_000_000, "a wait that is not over counts too"
    assert values_of(consumer.drain()) == list(range(100_000))
    assert producer.wait() is None
    assert not partition.blocked
    assert partition.blocked_ns >= 50_000_000
    assert partition.write_ns + partition.blocked_ns <= emitting_ns[0], "it counts once"


def test_a_batch_larger_than_the_window_arrives(
    pair: Any, numbers: Numbers, in_thread: InThread
) -> None:
    partition, consumer = pair.partition(), pair.consumer()

    def task() -> None:
        for n in range(3):
            partition.emit(numbers(n * 50_000, 50_000))
            partition.emit(numbers(0, 1))
        finish(partition)

    producer = in_thread(task)
    assert len(values_of(consumer.drain())) == 150_003
    assert producer.wait() is None


def test_a_slow_consumer_does_not_stop_its_neighbours(
    network: Any, numbers: Numbers, in_thread: InThread
) -> None:
    shape = {"partitioner": Partitioner.FORWARD, "producers": 2, "consumers": 2}
    slow, fast = (network.partition(p, **shape) for p in range(2))
    slow_consumer, fast_consumer = (network.consumer(c, **shape) for c in range(2))  # on one stream

    def task(partition: ResultPartition) -> None:
        for n in range(200):
            partition.emit(numbers(n * 1000, 1000))
        finish(partition)

    slow_producer, fast_producer = in_thread(lambda: task(slow)), in_thread(lambda: task(fast))
    assert values_of(fast_consumer.drain()) == list(range(200_000)), (
        "25 windows pass beside the full one"
    )
    assert fast_producer.wait() is None
    assert slow.bytes_out <= WINDOW_BYTES
    assert slow_producer.thread.is_alive()
    assert values_of(slow_consumer.drain()) == list(range(200_000))


def test_a_full_channel_does_not_hold_back_the_rest_of_a_batch(
    pair: Any, numbers: Numbers, in_thread: InThread
) -> None:
    shape = {"partitioner": Partitioner.BROADCAST, "consumers": 2}
    partition = pair.partition(**shape)
    stuck, free = (pair.consumer(c, **shape) for c in range(2))
    producer = in_thread(lambda: [partition.emit(numbers(n * 1000, 1000)) for n in range(20)])
    stuck.next(), stuck.next()
    got = 0
    while got < 9000:  # the window holds 8 more for the one that is stuck
        got += free.next()[1].num_rows
    partition.abort()
    assert isinstance(producer.wait(), ExchangeClosed)


def test_a_blocked_channel_is_not_polled(pair: Any, numbers: Numbers) -> None:
    shape = {"partitioner": Partitioner.REBALANCE, "producers": 2}
    partitions = [pair.partition(p, **shape) for p in range(2)]
    consumer = pair.consumer(**shape)
    consumer.gate.block(0, BlockReason.BARRIER_ALIGNMENT)
    for p, partition in enumerate(partitions):
        partition.emit(numbers(p, 1))
    assert consumer.next()[0] == 1
    partitions[1].emit(numbers(5, 1))
    assert consumer.next()[0] == 1
    assert consumer.gate.poll() is None
    eventually(lambda: consumer.gate.queued(0))
    consumer.arrived.clear()
    consumer.gate.unblock(0, BlockReason.BARRIER_ALIGNMENT)
    assert consumer.arrived.is_set()
    assert consumer.next() == (0, numbers(0, 1))


def test_channels_take_turns(pair: Any, numbers: Numbers) -> None:
    shape = {"partitioner": Partitioner.REBALANCE, "producers": 2}
    partitions = [pair.partition(p, **shape) for p in range(2)]
    consumer = pair.consumer(**shape)
    for n in range(3):
        for partition in partitions:
            partition.emit_event(Watermark(n))
    eventually(lambda: all(len(consumer.gate.queued(c)) == 3 for c in range(2)))
    order = [consumer.next()[0] for _ in range(6)]
    assert order in ([0, 1] * 3, [1, 0] * 3)


def test_on_available_is_called_once_per_change_from_nothing_to_something(
    pair: Any, numbers: Numbers
) -> None:
    calls: list[str] = []
    partition = pair.partition()
    consumer = pair.consumer()
    consumer.gate.on_available = lambda: calls.append(threading.current_thread().name)
    for n in range(5):
        partition.emit_event(Watermark(n))
    eventually(lambda: len(consumer.gate.queued(0)) == 5)
    assert len(calls) == 1
    assert [consumer.gate.poll() for _ in range(6)] == [
        *((0, Watermark(n)) for n in range(5)),
        None,
    ]
    partition.emit_event(Watermark(5))
    eventually(lambda: len(calls) == 2)


# -- partitions that come late, or never


def test_a_consumer_waits_for_its_producer(pair: Any, numbers: Numbers) -> None:
    consumer = pair.consumer()
    assert consumer.gate.poll() is None
    partition = pair.partition()
    partition.emit(numbers(0, 3))
    assert consumer.next() == (0, numbers(0, 3))


@pytest.mark.parametrize("local", [True, False])
def test_a_producer_that_never_comes_is_a_clear_error(
    new_exchange: Callable[..., Exchange], new_pair: Any, local: bool
) -> None:
    producing = new_exchange(partition_timeout_s=0.1)
    consumer = new_pair(producing, producing if local else new_exchange()).consumer()
    with pytest.raises(
        PartitionFailed, match=r"producer subtask 0, attempt 0, .* did not appear within 0\.1 s"
    ) as failed:
        consumer.next()
    assert (failed.value.producer, failed.value.address) == (0, producing.address)


def test_an_address_without_a_process_is_a_clear_error(network: Any) -> None:
    with socket.socket() as taken:  # keeps the port, but does not listen
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            PartitionFailed, match=f"at {address}: the connection to its process was lost"
        ):
            network.consumer(address=address).next()


def test_a_wrong_consumer_or_a_second_one_is_refused(pair: Any) -> None:
    pair.partition(consumers=1)
    with pytest.raises(PartitionFailed, match="has no channel to consumer subtask 1"):
        pair.consumer(1, partitioner=Partitioner.REBALANCE, consumers=2).next()
    first, second = pair.consumer(), pair.consumer()
    with pytest.raises(PartitionFailed, match="opened a second time"):
        second.next()
    assert first.gate.poll() is None


# -- schema


def test_a_changed_schema_is_an_error_of_its_producer(pair: Any, numbers: Numbers) -> None:
    partition = pair.partition()
    partition.emit(numbers(0, 1))
    with pytest.raises(SchemaChanged, match=r"unexpected .*n: string.*expected .*n: int64"):
        partition.emit(pa.record_batch({"n": ["x"]}))


def test_producers_of_one_stream_must_agree_on_the_schema(network: Any, numbers: Numbers) -> None:
    shape = {"partitioner": Partitioner.REBALANCE, "producers": 2}
    first, second = (network.partition(p, **shape) for p in range(2))
    consumer = network.consumer(**shape)
    first.emit(numbers(0, 1))
    consumer.next()
    other = pa.record_batch({"m": [1.5]})
    second.emit(other)
    with pytest.raises(PartitionFailed, match="producer subtask 1.*differs from its first batch"):
        consumer.next()
    with pytest.raises(SchemaChanged, match="unexpected .*m: double"):
        second.emit(other)


# -- failures


def test_an_aborted_producer_fails_its_consumers_before_what_is_queued(
    pair: Any, numbers: Numbers
) -> None:
    partition, consumer = pair.partition(), pair.consumer()
    partition.emit(numbers(0, 1))
    assert consumer.arrived.wait(60)  # it is set after the arrival
    consumer.arrived.clear()
    partition.abort("its task failed: boom")
    assert consumer.arrived.wait(60)
    for _ in range(2):
        with pytest.raises(
            PartitionFailed, match="producer subtask 0, attempt 0, of result result.*boom"
        ):
            consumer.gate.poll()
    with pytest.raises(ExchangeClosed):
        partition.emit(numbers(0, 1))
    partition.close()
    with pytest.raises(PartitionFailed, match="boom"):  # a later consumer also fails immediately
        pair.consumer().next()


def test_abort_unblocks_emit_and_finish_immediately(
    pair: Any, numbers: Numbers, in_thread: InThread
) -> None:
    full, ended = pair.partition(), pair.partition(result_id="other")
    emitting = in_thread(lambda: [full.emit(numbers(0, 1000)) for _ in range(100)])
    ended.emit_event(EndOfPartition())
    finishing = in_thread(ended.finish)
    eventually(lambda: full.out_pool_usage > 0.8)
    started = time.monotonic()
    full.abort()
    ended.abort()
    assert isinstance(emitting.wait(), ExchangeClosed)
    assert isinstance(finishing.wait(), ExchangeClosed)
    assert time.monotonic() - started < 60.0, "far below the exchange's timeout"


def test_a_closed_gate_raises_in_a_producer_that_waits(
    pair: Any, numbers: Numbers, in_thread: InThread
) -> None:
    partition, consumer = pair.partition(), pair.consumer()
    producer = in_thread(lambda: [partition.emit(numbers(0, 1000)) for _ in range(100)])
    eventually(lambda: partition.out_pool_usage > 0.8)
    consumer.gate.close()
    error = producer.wait()
    assert isinstance(error, PartitionAbandoned)
    assert (error.consumer, error.producer) == (0, 0)
    with pytest.raises(ExchangeClosed):
        consumer.gate.poll()


def test_a_gate_may_be_closed_before_its_producer_appears(
    pair: Any, numbers: Numbers, exchange_threads: Any
) -> None:
    pair.consumer().gate.close()
    eventually(lambda: not exchange_threads())
    partition, consumer = pair.partition(), pair.consumer()
    partition.emit(numbers(0, 1))
    assert consumer.next() == (0, numbers(0, 1))


def test_closing_a_finished_gate_harms_no_producer(
    pair: Any, numbers: Numbers, in_thread: InThread
) -> None:
    partition, consumer = pair.partition(), pair.consumer()
    partition.emit(numbers(0, 1))
    producer = in_thread(lambda: finish(partition))
    consumer.drain()
    consumer.gate.close()
    assert producer.wait() is None


def test_release_job_frees_everything(
    pair: Any, numbers: Numbers, in_thread: InThread, exchange_threads: Any
) -> None:
    partition, consumer = pair.partition(), pair.consumer()
    late = pair.consumer(result_id="never")
    partition.emit(numbers(0, 1))
    consumer.next()
    eventually(lambda: pair.producing.partitions_awaited == 1)
    producer = in_thread(lambda: [partition.emit(numbers(0, 1000)) for _ in range(100)])
    eventually(lambda: partition.out_pool_usage > 0.8)
    pair.producing.release_job("job")
    assert isinstance(producer.wait(), (ExchangeClosed, PartitionAbandoned))
    for reader in (consumer, late):
        with pytest.raises((ExchangeClosed, PartitionFailed)):
            reader.exhaust()
    pair.consuming.release_job("job")
    eventually(lambda: not exchange_threads(), "the threads of exchanges have ended")
    port = int(pair.producing.address.rpartition(":")[2])
    eventually(
        lambda: (
            not [c for c in psutil.Process().net_connections() if c.raddr and c.raddr.port == port]
        )
    )
    again, reader = pair.partition(), pair.consumer()  # the same names can be used again
    again.emit(numbers(0, 1))
    assert reader.next() == (0, numbers(0, 1))


def test_close_frees_the_port_and_notifies_the_peers(network: Any, numbers: Numbers) -> None:
    partition, consumer = network.partition(), network.consumer()
    partition.emit(numbers(0, 1))
    consumer.next()
    network.producing.close()
    with pytest.raises(PartitionFailed, match="shutting down"):
        consumer.next()
    host, port = network.producing.address.split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=60).close()


def test_a_closing_consumer_process_abandons(
    network: Any, numbers: Numbers, in_thread: InThread
) -> None:
    partition, consumer = network.partition(), network.consumer()
    partition.emit(numbers(0, 1))
    consumer.next()
    producer = in_thread(lambda: [partition.emit(numbers(0, 1000)) for _ in range(100)])
    eventually(lambda: partition.out_pool_usage > 0.8)
    network.consuming.close()
    assert isinstance(producer.wait(), PartitionAbandoned)


# -- peers that are not ours


def test_garbage_on_the_port_does_not_hurt(network: Any, numbers: Numbers) -> None:
    host, port = network.producing.address.split(":")
    for garbage in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 100,
        bytes(range(256)) * 100,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 500,
    ):
        connection = socket.create_connection((host, int(port)), timeout=60)
        with connection, contextlib.suppress(OSError):  # it may hang up on us already
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
    partition, consumer = network.partition(), network.consumer()
    partition.emit(numbers(0, 1))
    assert consumer.next() == (0, numbers(0, 1))


@pytest.mark.parametrize(
    "records",
    [b"\xff\x00\x00\x00\x00", b"\x01", wire.encode_to_producer(wire.Consumed(channel=5)),
     wire.encode_to_producer(wire.Open(channel=0, producer=0, attempt=0, consumer=0)) * 2,
     wire.encode_to_producer(wire.Open(channel=0, producer=0, attempt=0, consumer=0))
     + wire.encode_to_producer(wire.GrantCredit(channel=0, size_bytes=10**6, events=0))],
    ids=["unknown type", "cut off", "unknown channel", "opened twice", "too much credit"],
)  # fmt: skip
def test_a_consumer_that_breaks_the_protocol_ends_its_stream_only(
    network: Any, numbers: Numbers, records: bytes
) -> None:
    partition = network.partition()
    with flight.FlightClient(f"grpc://{network.producing.address}") as client:
        writer, reader = client.do_exchange(
            flight.FlightDescriptor.for_command(wire.encode_descriptor("job", "result"))
        )
        writer.write_metadata(pa.py_buffer(records))
        with pytest.raises((flight.FlightError, pa.ArrowException)):
            _read_all(reader)
        with pytest.raises((flight.FlightError, pa.ArrowException)):
            writer.close()
    if b"\x01" in records[:1] and len(records) > 1:
        with pytest.raises(PartitionAbandoned, match="broke the protocol"):
            partition.emit(numbers(0, 1))
    other, consumer = network.partition(result_id="other"), network.consumer(result_id="other")
    other.emit(numbers(0, 1))
    assert consumer.next() == (0, numbers(0, 1))


def test_other_flight_calls_are_refused(network: Any) -> None:
    with flight.FlightClient(f"grpc://{network.producing.address}") as client:
        for call in (
            lambda: list(client.list_flights()),
            lambda: client.do_get(flight.Ticket(b"x")).read_all(),
        ):
            with pytest.raises((NotImplementedError, flight.FlightError, pa.ArrowException)):
                call()
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b"hello"))
        with pytest.raises(
            (flight.FlightError, pa.ArrowException), match="not a stream of this version"
        ):
            reader.read_chunk()
        with pytest.raises((flight.FlightError, pa.ArrowException)):
            writer.close()


class _Liar(flight.FlightServerBase):  # type: ignore[misc]
    """A producer's process that sends what its test gives it."""

    def __init__(self, metadata: bytes, batch: pa.RecordBatch | None) -> None:
        self._message = metadata, batch
        super().__init__("grpc://127.0.0.1:0")

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        metadata, batch = self._message
        if batch is None:
            writer.write_metadata(pa.py_buffer(metadata))
        else:
            writer.begin(batch.schema)
            writer.write_with_metadata(batch, pa.py_buffer(metadata))
        for _ in iter(lambda: _next(reader), None):
            pass


def _read_all(reader: Any) -> None:
    while True:
        reader.read_chunk()


def _next(reader: Any) -> Any:
    try:
        return reader.read_chunk()
    except (StopIteration, pa.ArrowException):
        return None


@pytest.mark.parametrize(
    ("metadata", "with_batch", "complaint"),
    [(b"\xff\x00\x00\x00\x00", False, "unknown type 255"),
     (wire.encode_event(0, 1, Watermark(0)), False, "expected element 0, received 1"),
     (wire.encode_event(9, 0, Watermark(0)), False, "channel 9, which was never opened"),
     (wire.encode_batch_header(0, 0, 1, 8), False, "header without a batch"),
     (b"", True, "batch without its header")],
)  # fmt: skip
def test_a_producer_that_breaks_the_protocol_fails_its_channels(
    network: Any, numbers: Numbers, metadata: bytes, with_batch: bool, complaint: str
) -> None:
    with _Liar(metadata, numbers(0, 1) if with_batch else None) as liar:
        consumer = network.consumer(address=f"127.0.0.1:{liar.port}")
        with pytest.raises(PartitionFailed, match=f"broke the protocol.*{complaint}"):
            consumer.next()
