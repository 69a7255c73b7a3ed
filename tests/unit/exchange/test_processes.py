"""The exchange between real processes: what a kill -9 does, and what a consumer that stands still
costs.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pyarrow as pa
import pytest

from taskexecutor.executor.exchange import Exchange, PartitionAbandoned, PartitionFailed
from tests.waiting import eventually

WINDOW_BYTES = 4 * 2**20
BATCH_BYTES = 2**20  # 2**17 numbers
AT_ONCE_S = 60.0  # on a busy machine; far below the exchange's timeout

NewExchange = Callable[..., Exchange]

PEER = """
import sys, threading
import numpy as np, pyarrow as pa
from firesteel.common.job_graph import DistributionPattern, Partitioner
from taskexecutor.executor.exchange import Exchange, Locations
exchange = Exchange(
    host="127.0.0.1", window_bytes=int(sys.argv[1]), batch_rows=10**9, partition_timeout_s=600)
common = dict(job_id="job", result_id="result", producers=1, consumers=1)
print(exchange.address, flush=True)
if sys.argv[2] == "produce":
    partition = exchange.create_partition(
        producer=0, attempt=0, partitioner=Partitioner.FORWARD, max_parallelism=128,
        key_columns=(), **common)
    while True:
        partition.emit(pa.record_batch({"n": np.ones(2**17, np.int64)}))
else:
    locations = Locations((sys.argv[3],), [0], [0])
    gate = exchange.create_gate(
        consumer=0, pattern=DistributionPattern.POINTWISE, locations=locations,
        on_available=lambda: None, **common)
    while gate.poll() is None:
        pass
    print("polled", flush=True)
    if sys.argv[4:] != ["leave"]:
        threading.Event().wait()
"""


@pytest.fixture
def peer() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PEER, str(WINDOW_BYTES), *arguments]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_memory_stays_bounded_and_death_of_the_producer_is_noticed(
    peer: Any, new_exchange: NewExchange, new_pair: Any
) -> None:
    exchange = new_exchange(window_bytes=WINDOW_BYTES)
    process = peer("produce")
    consumer = new_pair(exchange, exchange).consumer(address=line(process))
    consumer.next()
    measured = psutil.Process(process.pid), psutil.Process()
    before = [p.memory_info().rss for p in measured]
    time.sleep(0.3)  # time enough for hundreds of megabytes
    assert len(consumer.gate.queued(0)) <= WINDOW_BYTES // BATCH_BYTES
    grown = [p.memory_info().rss - b for p, b in zip(measured, before, strict=True)]
    assert max(grown) < 16 * 2**20, "it waits for credit"

    started = time.monotonic()
    process.send_signal(signal.SIGKILL)
    with pytest.raises(
        PartitionFailed, match="producer subtask 0, attempt 0.*connection to its process was lost"
    ):
        consumer.exhaust()
    assert time.monotonic() - started < AT_ONCE_S


def test_death_of_the_consumer_is_known_immediately(
    peer: Any, new_exchange: NewExchange, new_pair: Any, in_thread: Any
) -> None:
    exchange = new_exchange(window_bytes=WINDOW_BYTES)
    partition = new_pair(exchange, exchange).partition()
    process = peer("consume", exchange.address)
    batch = pa.record_batch({"n": pa.array(range(BATCH_BYTES // 8))})
    producer = in_thread(lambda: [partition.emit(batch) for _ in range(1000)])
    assert line(process)
    assert line(process) == "polled"
    eventually(lambda: partition.out_pool_usage > 0.7)
    started = time.monotonic()
    process.send_signal(signal.SIGKILL)
    assert isinstance(producer.wait(), PartitionAbandoned)
    assert time.monotonic() - started < AT_ONCE_S


def test_a_frozen_consumer_neither_blocks_cancellation_nor_close(
    peer: Any, new_exchange: NewExchange, new_pair: Any, in_thread: Any
) -> None:
    exchange = new_exchange(window_bytes=WINDOW_BYTES)
    partition = new_pair(exchange, exchange).partition()
    process = peer("consume", exchange.address)
    line(process)
    process.send_signal(signal.SIGSTOP)
    batch = pa.record_batch({"n": pa.array(range(BATCH_BYTES // 8))})
    producer = in_thread(lambda: [partition.emit(batch) for _ in range(1000)])
    eventually(lambda: partition.out_pool_usage > 0.7)
    started = time.monotonic()
    partition.abort()
    assert producer.wait() is not None
    assert time.monotonic() - started < AT_ONCE_S
    process.kill()


def test_a_process_may_end_without_closing_its_exchange(
    peer: Any, new_exchange: NewExchange, new_pair: Any
) -> None:
    exchange = new_exchange(window_bytes=WINDOW_BYTES)
    partition = new_pair(exchange, exchange).partition()
    partition.emit(pa.record_batch({"n": [1]}))
    process = peer("consume", exchange.address, "leave")
    assert process.wait(timeout=60) == 0
