"""The exchange between processes that prove to each other that they work for the same job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pyarrow.flight as flight
import pytest

from firesteel.common.security.job_keys import derive
from taskexecutor.executor.exchange import wire
from taskexecutor.executor.exchange.registry import PartitionRegistry
from taskexecutor.executor.exchange.security import ExchangeSecurity, JobKey, open_client
from taskexecutor.executor.exchange.server import ExchangeServer

SECRET = b"s" * 32
JOB, OTHER = "1" * 32, "2" * 32


def _of(slot: JobKey) -> ExchangeSecurity:
    return ExchangeSecurity(key_of=slot.of, awaited_key=slot.awaited)


@pytest.fixture
def slot() -> JobKey:
    return JobKey(wait_s=0.2)


@pytest.fixture
def server(slot: JobKey) -> Iterator[ExchangeServer]:
    server = ExchangeServer(PartitionRegistry(timeout_s=60), "127.0.0.1", _of(slot))
    yield server
    server.stop()


def _read(server: ExchangeServer, job_id: str, key_of: Callable[[str], bytes | None]) -> None:
    """Opens and closes a stream. Raises FlightUnauthenticatedError."""
    security = ExchangeSecurity(key_of=key_of, awaited_key=key_of)
    descriptor = flight.FlightDescriptor.for_command(wire.encode_descriptor(job_id, "r"))
    with open_client(security, server.address) as client:
        writer, reader = client.do_exchange(descriptor, security.call_options(job_id))
        writer.done_writing()
        with pytest.raises(StopIteration):
            reader.read_chunk()


def _derived(job_id: str) -> bytes:
    return derive(SECRET, job_id)


def test_a_slot_of_the_job_is_served(server, slot) -> None:
    slot.assign(JOB, _derived(JOB))
    _read(server, JOB, _derived)


@pytest.mark.parametrize("key", [None, b"", derive(SECRET, OTHER)])
def test_other_callers_are_refused(key, server, slot) -> None:
    slot.assign(JOB, _derived(JOB))
    with pytest.raises(flight.FlightUnauthenticatedError, match="works for the job"):
        _read(server, JOB, lambda job_id: key)


def test_a_slot_serves_its_own_job_alone(server, slot) -> None:
    slot.assign(JOB, _derived(JOB))
    with pytest.raises(flight.FlightUnauthenticatedError):
        _read(server, OTHER, _derived)


def test_a_call_without_a_token_is_refused(server, slot) -> None:
    slot.assign(JOB, _derived(JOB))
    descriptor = flight.FlightDescriptor.for_command(wire.encode_descriptor(JOB, "r"))
    with flight.FlightClient(f"grpc://{server.address}") as client:
        _, reader = client.do_exchange(descriptor)
        with pytest.raises(flight.FlightUnauthenticatedError):
            reader.read_chunk()


def test_a_consumer_that_is_deployed_first_waits_for_its_producer() -> None:
    slot = JobKey(wait_s=60)
    server = ExchangeServer(PartitionRegistry(timeout_s=60), "127.0.0.1", _of(slot))
    served = threading.Event()

    def read() -> None:
        _read(server, JOB, _derived)
        served.set()

    consumer = threading.Thread(target=read)
    consumer.start()
    assert not served.wait(0.3)
    slot.assign(JOB, _derived(JOB))
    assert served.wait(60)
    consumer.join()
    server.stop()
