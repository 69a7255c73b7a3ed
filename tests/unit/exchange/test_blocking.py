"""Partitions of BLOCKING results: files that a different process serves than wrote them."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from firesteel.common.job_graph import Partitioner
from firesteel.elements import (
    MAX_WATERMARK,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    Watermark,
)
from taskexecutor.executor.exchange import (
    BlockingPartition,
    Exchange,
    ExchangeClosed,
    LocalProtocolError,
    PartitionFailed,
    ResultFolders,
    ResultNotWritten,
)
from taskexecutor.executor.exchange.blocking import ServedPartition
from taskexecutor.executor.exchange.blocking.partition_file import PartitionFile
from taskexecutor.executor.exchange.partition import PartitionId
from taskexecutor.executor.exchange.registry import PartitionRegistry
from taskexecutor.executor.exchange.server import ExchangeServer
from tests.unit.exchange.conftest import values_of

WINDOW_BYTES = 64 * 1024
JOB, RESULT = "job", "result"
ENDS = [MAX_WATERMARK, EndOfData(True), EndOfPartition()]


class Store:
    """Handles finished partitions as a TaskExecutor does."""

    def __init__(self) -> None:
        self.registry = PartitionRegistry(timeout_s=None)
        self.server = ExchangeServer(self.registry, "127.0.0.1")

    def serve(self, written: BlockingPartition, path: Path | None = None) -> ServedPartition:
        assert written.stored is not None
        served = ServedPartition(
            written.id,
            path or Path(written.stored.path),
            window_bytes=WINDOW_BYTES,
            batch_rows=65536,
        )
        self.registry.add(served)
        return served


@pytest.fixture
def store(new_exchange: Callable[..., Exchange]) -> Iterator[Store]:  # closed before its consumers
    store = Store()
    yield store
    for partition in store.registry.partitions():
        partition.close()
    store.registry.close()
    store.server.stop()


@pytest.fixture
def consuming(store: Store, new_exchange: Callable[..., Exchange]) -> Exchange:
    return new_exchange()


def write(
    exchange: Exchange,
    batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch],
    *,
    producer: int = 0,
    consumers: int = 1,
    partitioner: Partitioner = Partitioner.REBALANCE,
) -> BlockingPartition:
    partition = begin(exchange, producer=producer, consumers=consumers, partitioner=partitioner)
    for batch in batches:
        partition.emit(batch)
        partition.emit_event(Watermark(7))
    end(partition)
    return partition


def begin(
    exchange: Exchange,
    *,
    producer: int = 0,
    consumers: int = 1,
    partitioner: Partitioner = Partitioner.REBALANCE,
) -> BlockingPartition:
    partition = exchange.create_partition(
        job_id=JOB,
        result_id=RESULT,
        producer=producer,
        attempt=0,
        partitioner=partitioner,
        producers=1,
        consumers=consumers,
        max_parallelism=128,
        key_columns=("n",) if partitioner is Partitioner.HASH else (),
        blocking=True,
    )
    assert isinstance(partition, BlockingPartition)
    return partition


def end(partition: BlockingPartition) -> None:
    partition.emit_event(EndOfData())
    partition.await_acknowledged()
    partition.emit_event(EndOfPartition())
    partition.finish()
    partition.close()


def new_writer(
    new_exchange: Callable[..., Exchange], folder: Path, **options: Any
) -> tuple[Exchange, ResultFolders]:
    folders = ResultFolders(disk=folder / "disk", **options)
    return new_exchange(folders=folders), folders


@pytest.mark.parametrize("codec", [None, "lz4"])
def test_every_consumer_gets_its_rows_in_order_from_many_regions(
    new_exchange: Any, new_pair: Any, store: Store, consuming: Exchange, tmp_path: Path, codec: Any
) -> None:
    writer, _ = new_writer(new_exchange, tmp_path, buffer_bytes=20_000, codec=codec)
    batches = [
        pa.record_batch(
            {
                "n": np.arange(k * 1000, k * 1000 + 1000),
                "t": pa.array([f"text {i}" for i in range(1000)]).dictionary_encode(),
            }
        )
        for k in range(20)
    ]
    written = write(writer, batches, consumers=3, partitioner=Partitioner.HASH)
    store.serve(written)
    assert written.stored is not None
    assert written.stored.rows == written.records_out == 20_000
    assert Path(written.stored.path).stat().st_size == written.stored.size_bytes
    seen: list[int] = []
    for consumer in range(3):
        reader = new_pair(consuming, consuming).consumer(
            consumer,
            partitioner=Partitioner.HASH,
            consumers=3,
            address=store.server.address,
        )
        elements = reader.drain()
        assert [element for _, element in elements[-3:]] == ENDS
        got = values_of(elements)
        assert got == sorted(got)
        assert len(got) > 5000
        seen += got
    assert sorted(seen) == list(range(20_000))


def test_it_is_read_again_and_again_also_when_its_writer_is_gone(
    new_exchange: Any,
    new_pair: Any,
    store: Store,
    consuming: Exchange,
    tmp_path: Path,
    numbers: Any,
) -> None:
    writer, folders = new_writer(new_exchange, tmp_path, memory=tmp_path / "memory")
    written = write(writer, [numbers(0, 10), numbers(10, 10)])
    assert written.stored is not None
    assert Path(written.stored.path).is_relative_to(tmp_path / "memory"), "it is small"
    taken = tmp_path / "taken"
    Path(written.stored.path).rename(taken)
    writer.release_job(JOB)
    writer.close()
    assert not list(folders.disk.rglob("*"))
    store.serve(written, taken)
    for _ in range(2):
        reader = new_pair(consuming, consuming).consumer(
            partitioner=Partitioner.REBALANCE, address=store.server.address
        )
        assert values_of(reader.drain()) == list(range(20))
    half = new_pair(consuming, consuming).consumer(
        partitioner=Partitioner.REBALANCE, address=store.server.address
    )
    half.next()
    half.gate.close()  # one that is cancelled does not disturb the others
    reader = new_pair(consuming, consuming).consumer(
        partitioner=Partitioner.REBALANCE, address=store.server.address
    )
    assert values_of(reader.drain()) == list(range(20))


def test_what_all_consumers_get_is_written_once(
    new_exchange: Any, new_pair: Any, store: Store, consuming: Exchange, tmp_path: Path
) -> None:
    writer, _ = new_writer(new_exchange, tmp_path)
    batch = pa.record_batch({"n": np.arange(100_000)})
    written = write(writer, [batch], consumers=5, partitioner=Partitioner.BROADCAST)
    assert written.stored is not None
    assert written.stored.size_bytes < 1.1 * batch.nbytes
    store.serve(written)
    for consumer in range(5):
        reader = new_pair(consuming, consuming).consumer(
            consumer,
            partitioner=Partitioner.BROADCAST,
            consumers=5,
            address=store.server.address,
        )
        assert values_of(reader.drain()) == list(range(100_000))


def test_an_early_consumer_waits_and_one_without_rows_gets_the_end(
    new_exchange: Any, new_pair: Any, store: Store, consuming: Exchange, tmp_path: Path
) -> None:
    writer, _ = new_writer(new_exchange, tmp_path)
    reader = new_pair(consuming, consuming).consumer(
        partitioner=Partitioner.REBALANCE, address=store.server.address
    )
    store.serve(write(writer, []))
    assert [element for _, element in reader.drain()] == ENDS


def test_what_waits_for_a_slow_consumer_is_bounded_by_its_window(
    new_exchange: Any, new_pair: Any, store: Store, consuming: Exchange, tmp_path: Path
) -> None:
    writer, _ = new_writer(new_exchange, tmp_path, buffer_bytes=2**20)
    batches = [pa.record_batch({"n": np.arange(k * 4000, k * 4000 + 4000)}) for k in range(200)]
    store.serve(write(writer, batches))
    slow = new_pair(consuming, consuming).consumer(
        partitioner=Partitioner.REBALANCE, address=store.server.address
    )
    first = slow.next()
    quick = new_pair(consuming, consuming).consumer(
        partitioner=Partitioner.REBALANCE, address=store.server.address
    )
    assert values_of(quick.drain()) == list(range(800_000)), "the slow one does not hold it up"
    queued = sum(batch.nbytes for batch in slow.gate.queued(0))
    assert queued <= max(WINDOW_BYTES, 2 * 2**20)
    assert values_of([first, *slow.drain()]) == list(range(800_000))


@pytest.mark.parametrize("damage", ["bytes", "index", "cut off", "missing", "another's"])
def test_a_file_that_is_damaged_or_missing_fails_its_consumers(
    new_exchange: Any,
    new_pair: Any,
    store: Store,
    consuming: Exchange,
    tmp_path: Path,
    numbers: Any,
    damage: str,
) -> None:
    writer, _ = new_writer(new_exchange, tmp_path)
    written = write(writer, [numbers(0, 10_000)])
    assert written.stored is not None
    path = Path(written.stored.path)
    content = bytearray(path.read_bytes())
    match damage:
        case "bytes":
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
        case "index":
            content[-70] ^= 1
            path.write_bytes(content)
        case "cut off":
            path.write_bytes(content[:-1000])
        case "missing":
            path.unlink()
        case _:
            path.write_bytes(Path(write_other(writer, numbers).path).read_bytes())
    store.serve(written)
    reader = new_pair(consuming, consuming).consumer(
        partitioner=Partitioner.REBALANCE, address=store.server.address
    )
    with pytest.raises(PartitionFailed, match=str(path)) as failed:
        reader.exhaust()
    assert (failed.value.result_id, failed.value.producer, failed.value.attempt) == (RESULT, 0, 0)


def write_other(writer: Exchange, numbers: Any) -> Any:
    return write(writer, [numbers(0, 10)], producer=1).stored


def test_one_that_is_released_fails_its_consumers_now_and_later(
    new_exchange: Any,
    new_pair: Any,
    store: Store,
    consuming: Exchange,
    tmp_path: Path,
    numbers: Any,
) -> None:
    writer, _ = new_writer(new_exchange, tmp_path)
    served = store.serve(write(writer, [numbers(k * 9000, 9000) for k in range(50)]))
    reading = new_pair(consuming, consuming).consumer(
        partitioner=Partitioner.REBALANCE, address=store.server.address
    )
    reading.next()
    served.close()
    store.registry.remove(served)
    late = new_pair(consuming, consuming).consumer(
        partitioner=Partitioner.REBALANCE, address=store.server.address
    )
    for consumer in (reading, late):
        with pytest.raises(PartitionFailed, match="released"):
            consumer.exhaust()
    store.registry.refuse(PartitionId(JOB, RESULT, 0, 1), "it could not be taken over")
    assert store.registry.partitions() == []


def test_a_full_disk_fails_the_task_and_gives_its_space_back(
    new_exchange: Any, tmp_path: Path, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, folders = new_writer(new_exchange, tmp_path, buffer_bytes=1000)
    partition = begin(writer)
    partition.emit(numbers(0, 1000))
    (path,) = [path for path in folders.disk.rglob("*") if path.is_file()]
    assert partition._file is not None
    partition._file._file.close()
    partition._file._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    with pytest.raises(ResultNotWritten, match=f"{path}: No space left on device.*MiB free there"):
        partition.emit(numbers(1000, 1000))
    partition.abort()
    partition.close()
    assert not path.exists()


def test_what_does_not_fit_into_memory_is_written_to_disk(
    new_exchange: Any, tmp_path: Path, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, folders = new_writer(new_exchange, tmp_path, memory=tmp_path / "memory")
    append = PartitionFile._append

    def full(self: PartitionFile, content: Any) -> None:
        if self.path.is_relative_to(tmp_path / "memory") and self.size_bytes:
            raise self._not_written(OSError(errno.ENOSPC, "No space left on device"))
        append(self, content)

    monkeypatch.setattr(PartitionFile, "_append", full)
    stored = write(writer, [numbers(0, 1000)]).stored
    assert stored is not None
    assert stored.rows == 1000
    assert Path(stored.path).is_relative_to(folders.disk)
    assert not [path for path in (tmp_path / "memory").rglob("*") if path.is_file()]


def test_what_is_not_complete_is_deleted(new_exchange: Any, tmp_path: Path, numbers: Any) -> None:
    writer, folders = new_writer(new_exchange, tmp_path, buffer_bytes=1000)
    partition = begin(writer)
    partition.emit(numbers(0, 1000))
    with pytest.raises(LocalProtocolError, match="has not ended"):
        partition.finish()
    barrier = CheckpointBarrier(checkpoint_id=1, timestamp_ms=0)
    with pytest.raises(LocalProtocolError, match="a checkpoint"):
        partition.emit_event(barrier)
    partition.abort()
    with pytest.raises(ExchangeClosed):
        partition.emit(numbers(0, 1))
    partition.close()
    assert not [path for path in folders.disk.rglob("*") if path.is_file()]
    # Complete, but of a task that has failed after all: gone with its job.
    stored = write(writer, [numbers(0, 1000)], producer=1).stored
    assert stored is not None
    assert Path(stored.path).exists()
    writer.release_job(JOB)
    assert not list(folders.disk.rglob("*"))
