"""A client of schema registries: Confluent's REST API, version 1.

Schemas are immutable, so each is requested once. Requests that get no answer, or a server's error,
are repeated until the registry's `wait` has passed: a task then waits, and its log says for what.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote

from firesteel.common.config.redaction import REDACTED
from firesteel.common.logs import get_logger
from firesteel.connectors.kafka.formats import SchemaRegistry
from firesteel.errors import FiresteelError
from firesteel.operator import TaskCancelled

log = get_logger(__name__)

_CONTENT = "application/vnd.schemaregistry.v1+json"
_TIMEOUT_S = 10.0  # of one request
_PAUSES_S = (0.1, 0.3, 1.0, 2.0)  # between repeated requests; the last one repeats
_SLICE_S = 0.1  # how soon a wait notices that the task is cancelled
_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA = 40401, 40402, 40403


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    id: int
    kind: str  # AVRO, JSON or PROTOBUF
    text: str


class Reference(NamedTuple):
    """Another schema that a schema imports under `name`."""

    name: str
    subject: str
    version: int


class Version(NamedTuple):
    """A schema as the version of a subject."""

    id: int
    version: int


class RegistryClient:
    """Used by one thread."""

    def __init__(
        self,
        registry: SchemaRegistry,
        properties: Mapping[str, str],
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """`properties` are the registry's, with references resolved."""
        self.url = registry.url.rstrip("/")
        self._wait_s = registry.wait_s
        self._cancelled = cancelled
        self._headers = {"Accept": _CONTENT, "Content-Type": _CONTENT, **_authorization(properties)}
        self._secrets = [
            properties[n] for n in properties if n.split(".")[0] in ("basic", "bearer")
        ]
        ca = properties.get("ssl.ca.location")
        self._context = (
            ssl.create_default_context(cafile=ca) if self.url.startswith("https") else None
        )
        self._schemas: dict[int, RegisteredSchema | None] = {}

    def schema(self, id: int) -> RegisteredSchema | None:
        """Returns the schema with this id; None if there is none. It may be registered later, so a
        missing schema is requested again. Raises FiresteelError.
        """
        known = self._schemas.get(id)
        if known is not None:
            return known
        found = self._request(f"/schemas/ids/{id}", missing=(_NO_SCHEMA, 404))
        if found is None:
            return None
        kind = found.get("schemaType", "AVRO")
        if kind == "AVRO" and found.get("references"):  # the schemas of others are not parsed
            raise FiresteelError(
                f"schema {id} of the schema registry {self.url} refers to other schemas, which is "
                "not supported; register it as one schema"
            )
        schema = RegisteredSchema(id=id, kind=kind, text=str(found["schema"]))
        self._schemas[id] = schema
        return schema

    def problem(self, id: int, kind: str) -> str:
        """Returns why a record with this id cannot be read as this kind; empty if it can."""
        schema = self.schema(id)
        if schema is None:
            return f"the schema registry has no schema {id}"
        if schema.kind != kind:
            return f"schema {id} of the schema registry is {schema.kind}, not {kind}"
        return ""

    def register(
        self, subject: str, text: str, kind: str, references: Sequence[Reference] = ()
    ) -> int:
        """Registers the schema as the subject's latest version, unless it has it; returns its id.
        Raises FiresteelError if it is not compatible with earlier versions.
        """
        path = f"/subjects/{quote(subject, safe='')}/versions"
        return int(self._request(path, _schema(text, kind, references))["id"])

    def registered(
        self, subject: str, text: str, kind: str, references: Sequence[Reference] = ()
    ) -> Version:
        """Returns the version of the subject that is this schema. Raises FiresteelError if it is
        not registered.
        """
        path = f"/subjects/{quote(subject, safe='')}"
        body = _schema(text, kind, references)
        found = self._request(path, body, missing=(_NO_SUBJECT, _NO_SCHEMA))
        if found is None:
            raise FiresteelError(
                f"the schema is not registered as subject {subject!r} of the schema registry "
                f"{self.url}; register it, or pass register=True: {text}"
            )
        return Version(id=int(found["id"]), version=int(found["version"]))

    def _request(self, path: str, body: Any = None, missing: tuple[int, ...] = ()) -> Any:
        """Returns the answer; None for errors with the codes `missing`."""
        started = time.monotonic()
        attempt = 0
        while True:
            try:
                return self._answer(path, body)
            except urllib.error.HTTPError as error:
                code, message = _error_of(error)
                if code in missing:
                    return None
                if error.code < 500 and error.code != 429:
                    raise FiresteelError(self._refused(path, error.code, message)) from None
                problem = f"HTTP {error.code}: {message}"
            except (OSError, ValueError) as error:
                problem = str(getattr(error, "reason", error)) or type(error).__name__
            waited_s = time.monotonic() - started
            if waited_s >= self._wait_s:
                raise FiresteelError(
                    f"the schema registry {self.url} has not answered {path} for {waited_s:.0f} s: "
                    f"{self._without_secrets(problem)}; check that it runs, or increase wait"
                )
            log.warning(
                "waiting for the schema registry",
                url=self.url,
                path=path,
                problem=self._without_secrets(problem),
                fails_in_s=round(self._wait_s - waited_s, 1),
            )
            self._pause(min(_PAUSES_S[min(attempt, len(_PAUSES_S) - 1)], self._wait_s - waited_s))
            attempt += 1

    def _answer(self, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=self._headers)
        timeout_s = max(0.1, min(_TIMEOUT_S, self._wait_s))
        with urllib.request.urlopen(request, timeout=timeout_s, context=self._context) as response:
            return json.load(response)

    def _refused(self, path: str, code: int, message: str) -> str:
        message = self._without_secrets(message)
        if code in (401, 403):
            return (
                f"the schema registry {self.url} denies access to {path} ({code}): {message}; "
                "check basic.auth.user.info or bearer.auth.token"
            )
        if code == 409:
            subject = path.split("/")[2]
            return (
                f"the schema is not compatible with earlier versions of subject {subject!r} in the "
                f"schema registry {self.url}: {message}; give new fields a default, keep the types "
                "of others, or change the subject's compatibility"
            )
        return f"the schema registry {self.url} refuses {path} ({code}): {message}"

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return text

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (rest := end - time.monotonic()) > 0:
            if self._cancelled():
                raise TaskCancelled
            time.sleep(min(rest, _SLICE_S))


def _schema(text: str, kind: str, references: Sequence[Reference]) -> dict[str, Any]:
    found: dict[str, Any] = {"schema": text}
    if kind != "AVRO":
        found["schemaType"] = kind
    if references:
        found["references"] = [each._asdict() for each in references]
    return found


def _authorization(properties: Mapping[str, str]) -> dict[str, str]:
    if user := properties.get("basic.auth.user.info"):
        return {"Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}
    if token := properties.get("bearer.auth.token"):
        return {"Authorization": f"Bearer {token}"}
    return {}


def _error_of(error: urllib.error.HTTPError) -> tuple[int, str]:
    """Returns the registry's code and message."""
    with error:
        text = error.read(10_000).decode(errors="replace")
    try:
        found = json.loads(text)
        return int(found.get("error_code", error.code)), str(found.get("message", text))
    except (ValueError, AttributeError):
        return error.code, text[:200] or str(error.reason)
