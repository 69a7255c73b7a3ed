"""The credentials of one process in the exchange."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.flight as flight

from firesteel.common.security import job_keys
from firesteel.common.security.credentials import Certificate
from firesteel.common.security.job_keys import FindKey, InvalidJobToken, JobKeys, past_epoch

MAX_WAITING = 1_000  # callers whose job the slot does not work for yet
_HEADER = "firesteel-job-token"
_MIDDLEWARE = "job-token"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSecurity:
    """`keys_of` returns the keys with which this process signs for a job; `find` a key with which a
    caller has signed. `certificate`: of this process; None without TLS.
    """

    keys_of: Callable[[str], JobKeys | None]
    find: FindKey
    certificate: Certificate | None = None

    def check(self, context: Any, job_id: str) -> None:
        """Raises FlightUnauthenticatedError if the caller does not work for the job."""
        token = context.get_middleware(_MIDDLEWARE).token
        try:
            job_keys.verify(token, self.find, job_id, now_s=time.time())
        except InvalidJobToken as error:
            raise flight.FlightUnauthenticatedError(str(error)) from None

    def call_options(self, job_id: str) -> flight.FlightCallOptions:
        """Returns the options of a call that reads partitions of the job."""
        keys = self.keys_of(job_id)
        token = job_keys.sign(keys, now_s=time.time()) if keys else ""
        return flight.FlightCallOptions(headers=[(_HEADER.encode(), token.encode())])


class SlotKeys:
    """The keys of the job that a slot works for. Thread-safe."""

    def __init__(self, *, wait_s: float = 60.0) -> None:
        """`wait_s`: how long a caller of another job waits for the slot to change to this job."""
        self._wait_s = wait_s
        self._changed = threading.Condition()
        self._keys: JobKeys | None = None
        self._waiting = 0  # callers

    def assign(self, keys: JobKeys | None) -> None:
        """Replaces the keys; None: the job leaves the slot."""
        with self._changed:
            self._keys = keys
            self._changed.notify_all()

    def of(self, job_id: str) -> JobKeys | None:
        """Returns the keys of the job; None if the slot does not work for it."""
        keys = self._keys
        return keys if keys is not None and keys.job_id == job_id else None

    def find(self, job_id: str, epoch: int, expiry_s: int) -> bytes | None:
        """Returns a key of the job, once the slot works for it under this epoch. Tasks are deployed
        at the same time, so a consumer may call before the slot of its producer is assigned to
        their job. Raises InvalidJobToken for an epoch of the past.
        """

        def reached() -> bool:
            keys = self.of(job_id)
            return keys is not None and keys.epoch >= epoch

        with self._changed:
            if not reached() and self._waiting < MAX_WAITING:  # callers are not verified yet
                self._waiting += 1
                self._changed.wait_for(reached, self._wait_s)
                self._waiting -= 1
            keys = self.of(job_id)
        if keys is None:
            return None
        if epoch < keys.epoch:
            raise past_epoch(job_id, epoch, keys.epoch)
        return keys.by_expiry.get(expiry_s) if epoch == keys.epoch else None


class _Token(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, token: str) -> None:
        self.token = token


class _Tokens(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def start_call(self, info: Any, headers: Mapping[str, list[str]]) -> _Token:
        values = headers.get(_HEADER, [])
        return _Token(values[0] if len(values) == 1 else "")


def server_arguments(security: ExchangeSecurity | None, host: str) -> dict[str, Any]:
    """Returns the arguments of a Flight server on a free port of `host`."""
    if security is None:
        return {"location": f"grpc://{host}:0"}
    arguments: dict[str, Any] = {
        "location": f"grpc://{host}:0",
        "middleware": {_MIDDLEWARE: _Tokens()},
    }
    if security.certificate is not None:
        own = security.certificate
        arguments |= {
            "location": f"grpc+tls://{host}:0",
            "tls_certificates": [(own.certificate, own.key)],
            "verify_client": True,
            "root_certificates": own.authority,
        }
    return arguments


def open_client(security: ExchangeSecurity | None, address: str) -> Any:
    """Returns a FlightClient of another process's exchange."""
    if security is None or security.certificate is None:
        return flight.FlightClient(f"grpc://{address}")
    own = security.certificate
    return flight.FlightClient(
        f"grpc+tls://{address}",
        tls_root_certs=own.authority,
        cert_chain=own.certificate,
        private_key=own.key,
    )
