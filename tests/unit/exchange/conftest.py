"""Exchanges that are closed again, and what a task would do with them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from firesteel.common.job_graph import Partitioner
from firesteel.elements import EndOfPartition, StreamElement
from taskexecutor.executor.exchange import (
    Exchange,
    InputGate,
    Locations,
    ResultFolders,
    ResultPartition,
)
from tests.waiting import PATIENCE_S, eventually

WINDOW_BYTES = 64 * 1024
JOB = "job"
RESULT = "result"


class Consumer:
    """A gate with the event that its task would wait for."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.gate: InputGate

    def next(self, timeout_s: float = PATIENCE_S) -> tuple[int, StreamElement]:
        """The next element; raises what poll raises."""
        deadline = time.monotonic() + timeout_s
        while (polled := self.gate.poll()) is None:
            assert self.arrived.wait(deadline - time.monotonic()), "nothing came in time"
            self.arrived.clear()
        return polled

    def exhaust(self) -> None:
        """Polls until that raises."""
        while True:
            self.next()

    def drain(self) -> list[tuple[int, StreamElement]]:
        """Everything up to EndOfPartition on each channel."""
        elements, ended = [], 0
        while ended < self.gate.channels:
            elements.append(self.next())
            ended += isinstance(elements[-1][1], EndOfPartition)
        return elements


class Pair:
    """Two sides, in one process: `local` (one exchange) or over the network (two)."""

    def __init__(self, producing: Exchange, consuming: Exchange) -> None:
        self.producing = producing
        self.consuming = consuming

    @property
    def local(self) -> bool:
        return self.producing is self.consuming

    def partition(
        self,
        producer: int = 0,
        *,
        partitioner: Partitioner = Partitioner.FORWARD,
        producers: int = 1,
        consumers: int = 1,
        key_columns: tuple[str, ...] = (),
        result_id: str = RESULT,
        attempt: int = 0,
    ) -> ResultPartition:
        partition = self.producing.create_partition(
            job_id=JOB,
            result_id=result_id,
            producer=producer,
            attempt=attempt,
            partitioner=partitioner,
            producers=producers,
            consumers=consumers,
            max_parallelism=128,
            key_columns=key_columns,
        )
        assert isinstance(partition, ResultPartition)
        return partition

    def consumer(
        self,
        consumer: int = 0,
        *,
        partitioner: Partitioner = Partitioner.FORWARD,
        producers: int = 1,
        consumers: int = 1,
        result_id: str = RESULT,
        address: str = "",
    ) -> Consumer:
        reader = Consumer()
        reader.gate = self.consuming.create_gate(
            job_id=JOB,
            result_id=result_id,
            consumer=consumer,
            producers=producers,
            consumers=consumers,
            pattern=partitioner.pattern,
            locations=Locations(
                (address or self.producing.address,), [0] * producers, [0] * producers
            ),
            on_available=reader.arrived.set,
        )
        return reader


@pytest.fixture
def new_exchange() -> Iterator[Callable[..., Exchange]]:
    made: list[Exchange] = []

    def new(
        window_bytes: int = WINDOW_BYTES,
        batch_rows: int = 65536,
        partition_timeout_s: float = 600.0,
        folders: ResultFolders | None = None,
    ) -> Exchange:
        made.append(
            Exchange(
                host="127.0.0.1",
                window_bytes=window_bytes,
                batch_rows=batch_rows,
                partition_timeout_s=partition_timeout_s,
                folders=folders,
            )
        )
        return made[-1]

    yield new
    for exchange in made:
        exchange.close()
    eventually(lambda: not exchange_threads(), "the threads of exchanges have ended")


@pytest.fixture(params=["local", "network"])
def pair(request: pytest.FixtureRequest, new_exchange: Callable[..., Exchange]) -> Pair:
    producing = new_exchange()
    return Pair(producing, producing if request.param == "local" else new_exchange())


@pytest.fixture
def network(new_exchange: Callable[..., Exchange]) -> Pair:
    return Pair(new_exchange(), new_exchange())


@pytest.fixture
def in_thread() -> Iterator[Callable[[Callable[[], None]], Outcome]]:
    started: list[Outcome] = []

    def start(body: Callable[[], None]) -> Outcome:
        started.append(Outcome(body))
        return started[-1]

    yield start
    for outcome in started:
        outcome.thread.join(PATIENCE_S)
        assert not outcome.thread.is_alive()


class Outcome:
    """The outcome of a body that runs in a thread."""

    def __init__(self, body: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        self._body = body
        self.thread = threading.Thread(target=self._run, name="task")
        self.thread.start()

    def _run(self) -> None:
        try:
            self._body()
        except Exception as error:
            self.error = error

    def wait(self) -> BaseException | None:
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), "it still runs"
        return self.error


def values_of(elements: list[tuple[int, StreamElement]], column: str = "n") -> list[Any]:
    """The values of the elements that are batches."""
    return [
        value
        for _, element in elements
        if isinstance(element, pa.RecordBatch)
        for value in element.column(column).to_pylist()
    ]


def exchange_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("exchange-")]


def numbers(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(start, start + count), pa.int64())})


@pytest.fixture
def new_pair() -> type[Pair]:
    return Pair


@pytest.fixture(name="numbers")
def numbers_fixture() -> Callable[[int, int], pa.RecordBatch]:
    return numbers


@pytest.fixture(name="exchange_threads")
def exchange_threads_fixture() -> Callable[[], list[str]]:
    return exchange_threads
