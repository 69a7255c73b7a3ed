"""The credentials of one process in the exchange."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.flight as flight

from firesteel.common.security import job_keys
from firesteel.common.security.credentials import Certificate
from firesteel.common.security.job_keys import InvalidJobToken, KeyOfJob

_HEADER = "firesteel-job-token"
_MIDDLEWARE = "job-token"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSecurity:
    """`key_of` returns the keys of the jobs that this process works for; `awaited_key`, for
    callers, also those of jobs that it will work for soon. `certificate`: of
    this process; None without TLS."""

    key_of: KeyOfJob
    awaited_key: KeyOfJob
    certificate: Certificate | None = None

    def check(self, context: Any, job_id: str) -> None:
        """Raises FlightUnauthenticatedError if the caller does not work for the job."""
        token = context.get_middleware(_MIDDLEWARE).token
        try:
            job_keys.verify(token, self.awaited_key(job_id), job_id, now_s=time.time())
        except InvalidJobToken as error:
            raise flight.FlightUnauthenticatedError(str(error)) from None

    def call_options(self, job_id: str) -> flight.FlightCallOptions:
        """Returns the options of a call that reads partitions of the job."""
        token = job_keys.sign(self.key_of(job_id) or b"", job_id, now_s=time.time())
        return flight.FlightCallOptions(headers=[(_HEADER.encode(), token.encode())])


class JobKey:
    """The key of the job that a slot works for. Thread-safe."""

    def __init__(self, *, wait_s: float = 60.0) -> None:
        """`wait_s`: how long a caller of another job waits for the slot to change to this job."""
        self._wait_s = wait_s
        self._changed = threading.Condition()
        self._job: tuple[str, bytes] = ("", b"")

    def assign(self, job_id: str, key: bytes) -> None:
        with self._changed:
            self._job = (job_id, key)
            self._changed.notify_all()

    def of(self, job_id: str) -> bytes | None:
        """Returns the key of the job; None if the slot does not work for it."""
        known, key = self._job
        return key if known == job_id and key else None

    def awaited(self, job_id: str) -> bytes | None:
        """As `of`, once the slot works for the job. Tasks are deployed at the same time, so a
        consumer may call before the slot of its producer is assigned to their job.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._job[0] == job_id, self._wait_s)
        return self.of(job_id)


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
