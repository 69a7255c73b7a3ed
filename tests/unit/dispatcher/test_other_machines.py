"""JobMasters of machines other than the Dispatcher's."""

from __future__ import annotations

import pytest

from dispatcher import convert
from firesteel._proto import dispatcher_pb2


def pid_of(address: str, *, dispatcher: str, job_master_id: str = "a" * 32) -> int:
    message = dispatcher_pb2.JobMasterRegister(job_master_id=job_master_id, address=address, pid=77)
    return convert.registered(message, 1, dispatcher=dispatcher).pid


@pytest.mark.parametrize(
    ("address", "dispatcher"),
    [
        ("127.0.0.1:5000", "127.0.0.1:6123"),
        ("one:5000", "one:6123"),
        ("127.0.0.1:5000", "one:6123"),
        ("[::1]:5000", "one:6123"),
    ],
)
def test_a_process_of_this_machine_has_its_pid(address: str, dispatcher: str) -> None:
    assert pid_of(address, dispatcher=dispatcher) == 77


def test_a_process_of_another_machine_is_never_taken_for_one_of_this() -> None:
    there = pid_of("two:5000", dispatcher="one:6123")
    again = pid_of("two:5000", dispatcher="one:6123")
    other = pid_of("two:5001", dispatcher="one:6123", job_master_id="b" * 32)
    assert there == again < 0 and other < 0 and there != other
