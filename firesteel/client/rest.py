"""A client of the REST API, for programs without gRPC: it needs the standard library alone."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, TypedDict, cast

from firesteel.common.security.credentials import BEARER
from firesteel.errors import FiresteelError

TIMEOUT_S = 30.0
POLL_S = 0.5


class RestError(FiresteelError):
    """The server refused a request, or it failed. `status` is that of HTTP; 0: no answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class JobSummary(TypedDict):
    id: str
    name: str
    status: str
    start_ms: int
    end_ms: int | None
    duration_ms: int
    tasks: dict[str, int]
    owner: str | None


class Bottleneck(TypedDict):
    vertex_id: str
    sentence: str
    evidence: list[str]
    advice: str
    page: str


class Job(TypedDict):
    """A job; GET /firesteel/v1/openapi.json describes all fields."""

    id: str
    name: str
    status: str
    waiting_for: str | None
    warnings: list[str]
    bottleneck: Bottleneck | None
    vertices: list[dict[str, Any]]
    edges: list[dict[str, Any]]


class Savepoint(TypedDict):
    checkpoint_id: str
    path: str


class RestClient:
    """Calls the server at `url`, such as http://127.0.0.1:8081, with a token. Each method raises
    RestError. `context`: with the client's certificate, for servers beyond loopback.
    """

    def __init__(self, url: str, token: str, *, context: ssl.SSLContext | None = None) -> None:
        self._base = f"{url.rstrip('/')}/firesteel/v1/"
        self._token = token
        self._context = context

    def jobs(self) -> list[JobSummary]:
        return cast(list[JobSummary], self.call("GET", "jobs")["jobs"])

    def job(self, job_id: str) -> Job:
        return cast(Job, self.call("GET", f"jobs/{_quoted(job_id)}"))

    def cancel(self, job_id: str) -> None:
        self.call("POST", f"jobs/{_quoted(job_id)}/cancel", body={})

    def remove(self, job_id: str) -> None:
        """Removes a job that has ended."""
        self.call("DELETE", f"jobs/{_quoted(job_id)}")

    def savepoint(self, job_id: str, directory: str = "") -> Savepoint:
        """Takes a savepoint; returns once it is complete."""
        return self._completed(f"jobs/{_quoted(job_id)}/savepoints", {"directory": directory})

    def stop(self, job_id: str, directory: str = "", *, drain: bool = False) -> Savepoint:
        """Takes a savepoint and ends the job; returns once the savepoint is complete."""
        body = {"directory": directory, "drain": drain}
        return self._completed(f"jobs/{_quoted(job_id)}/stop", body)

    def call(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Returns the answer of any route of /firesteel/v1, such as `jobs`; {}: it has none."""
        request = urllib.request.Request(
            self._base + path + (f"?{urllib.parse.urlencode(query)}" if query else ""),
            method=verb,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"{BEARER}{self._token}",
                "Content-Type": "application/json",
            },
        )
        try:
            with urllib.request.urlopen(
                request, timeout=TIMEOUT_S, context=self._context
            ) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise RestError(error.code, _message(error.read()) or str(error)) from None
        except OSError as error:
            raise RestError(0, f"{self._base} does not answer: {error}") from None
        return cast(dict[str, Any], json.loads(content)) if content else {}

    def _completed(self, path: str, body: Mapping[str, Any]) -> Savepoint:
        operation = self.call("POST", path, body=body)["operation"]
        while not (outcome := self.call("GET", f"operations/{operation}"))["done"]:
            time.sleep(POLL_S)
        if outcome["error"] is not None:
            raise RestError(409, outcome["error"])
        return cast(Savepoint, outcome["result"])


def _quoted(part: str) -> str:
    return urllib.parse.quote(part, safe="")


def _message(content: bytes) -> str:
    try:
        return "\n".join(json.loads(content)["errors"])
    except (ValueError, KeyError, TypeError):
        return ""
