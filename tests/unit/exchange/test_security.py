"""The exchange between processes that prove to each other that they work for the same job."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pyarrow.flight as flight
import pytest

from firesteel.common.security.job_keys import JobKeys, issue
from taskexecutor.executor.exchange import wire
from taskexecutor.executor.exchange.registry import PartitionRegistry
from taskexecutor.executor.exchange.security import ExchangeSecurity, SlotKeys, open_client
from taskexecutor.executor.exchange.server import ExchangeServer

SECRET = b"s" * 32
JOB, OTHER = "1" * 32, "2" * 32


def _of(slot: SlotKeys) -> ExchangeSecurity:
    return ExchangeSecurity(keys_of=slot.of, find=slot.find)


def _keys(job_id: str = JOB, epoch: int = 2, secret: bytes = SECRET) -> JobKeys:
    return issue(secret, job_id, epoch, now_s=time.time())


@pytest.fixture
def slot() -> SlotKeys:
    return SlotKeys(wait_s=0.2)


@pytest.fixture
def server(slot: SlotKeys) -> Iterator[ExchangeServer]:
    server = ExchangeServer(PartitionRegistry(timeout_s=60), "127.0.0.1", _of(slot))
    yield server
    server.stop()


def _read(server: ExchangeServer, keys: JobKeys | None, job_id: str = JOB) -> None:
    """Opens and closes a stream. Raises FlightUnauthenticatedError."""
    security = ExchangeSecurity(keys_of=lambda job_id: keys, find=lambda *key: None)
    descriptor = flight.FlightDescriptor.for_command(wire.encode_descriptor(job_id, "r"))
    with open_client(security, server.address) as client:
        writer, reader = client.do_exchange(descriptor, security.call_options(job_id))
        writer.done_writing()
        with pytest.raises(StopIteration):
            reader.read_chunk()


def test_a_slot_of_the_job_is_served(server, slot) -> None:
    slot.assign(_keys())
    _read(server, _keys())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (None, "has not proved"),
        (_keys(secret=b"x"), "has not proved"),
        (_keys(OTHER), "has not proved"),
        (_keys(epoch=1), "JobMaster of epoch 1 of the job 1+, which was replaced by .* epoch 2"),
        (_keys(epoch=3), "has not proved"),  # the slot does not reach this epoch
    ],
)
def test_other_callers_are_refused(keys, message, server, slot) -> None:
    slot.assign(_keys())
    with pytest.raises(flight.FlightUnauthenticatedError, match=message):
        _read(server, keys)


def test_a_slot_serves_its_own_job_alone(server, slot) -> None:
    slot.assign(_keys())
    with pytest.raises(flight.FlightUnauthenticatedError):
        _read(server, _keys(OTHER), OTHER)
    slot.assign(None)
    with pytest.raises(flight.FlightUnauthenticatedError):
        _read(server, _keys())


def test_a_call_without_a_token_is_refused(server, slot) -> None:
    slot.assign(_keys())
    descriptor = flight.FlightDescriptor.for_command(wire.encode_descriptor(JOB, "r"))
    with flight.FlightClient(f"grpc://{server.address}") as client:
        _, reader = client.do_exchange(descriptor)
        with pytest.raises(flight.FlightUnauthenticatedError):
            reader.read_chunk()


@pytest.mark.parametrize("before", [None, _keys(OTHER), _keys(epoch=1)])
def test_a_consumer_that_is_deployed_first_waits_for_its_producer(before) -> None:
    slot = SlotKeys(wait_s=60)
    slot.assign(before)
    server = ExchangeServer(PartitionRegistry(timeout_s=60), "127.0.0.1", _of(slot))
    served = threading.Event()

    def read() -> None:
        _read(server, _keys())
        served.set()

    consumer = threading.Thread(target=read)
    consumer.start()
    assert not served.wait(0.3)
    slot.assign(_keys())
    assert served.wait(60)
    consumer.join()
    server.stop()
