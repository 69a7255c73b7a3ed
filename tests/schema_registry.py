"""A schema registry over HTTP: the routes of Confluent's that clients need, in memory."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.errors import SchemaParseException
from avro.schema import parse
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

_ROUTES = web.RouteTableDef()
_REGISTRY = web.AppKey("registry", "SchemaRegistryServer")  # type: ignore[misc]


class SchemaRegistryServer:
    """Use it in a `with`. `requests` lists the paths that were requested. `user` ("name:password")
    must authenticate. `failures` requests are answered with HTTP 500.
    """

    def __init__(self, *, user: str | None = None, port: int = 0) -> None:
        self.requests: list[str] = []
        self.failures = 0
        self.compatibility: dict[str, str] = {}
        self.schemas: list[dict[str, Any]] = []  # the id is the place, from 1
        self.subjects: dict[str, list[int]] = {}
        self._user = user
        self._port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()

        async def serve() -> None:
            app = web.Application(middlewares=[_guard])
            app[_REGISTRY] = self
            app.add_routes(_ROUTES)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", self._port)
            await site.start()
            self._port = runner.addresses[0][1]
            started.set()
            await self._stop.wait()
            await runner.cleanup()

        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(serve(),))
        self._thread.start()
        assert started.wait(30)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        self._loop.close()

    def add(self, subject: str, schema: dict[str, Any]) -> int:
        """Registers a schema, whether compatible or not; returns its id."""
        if schema not in self.schemas:
            self.schemas.append(schema)
        id = self.schemas.index(schema) + 1
        versions = self.subjects.setdefault(subject, [])
        if id not in versions:
            versions.append(id)
        return id

    def incompatibility(self, subject: str, schema: dict[str, Any]) -> str:
        """Returns why the latest version could not be read with the new schema; empty if it can."""
        versions = self.subjects.get(subject, [])
        if not versions or self.compatibility.get(subject, "BACKWARD") == "NONE":
            return ""
        earlier = self.schemas[versions[-1] - 1]
        if schema["schemaType"] == "JSON":
            return _changed(json.loads(earlier["schema"]), json.loads(schema["schema"]))
        if schema["schemaType"] == "PROTOBUF":
            return _changed_messages(earlier["schema"], schema["schema"])
        writer = parse(earlier["schema"])
        found = ReaderWriterCompatibilityChecker().get_compatibility(
            parse(schema["schema"]), writer
        )
        if found.compatibility is SchemaCompatibilityType.compatible:
            return ""
        return "; ".join(sorted(found.messages))


def _changed(writer: Any, reader: Any) -> str:
    """Returns why objects of the first schema do not fit the second one, for schemas that list all
    properties.
    """
    before, after = writer["properties"], reader["properties"]
    removed, types = sorted(before.keys() - after), [n for n in before if n in after]
    changed = [name for name in types if before[name] != after[name]]
    if removed and reader.get("additionalProperties") is False:
        return f"PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL: {removed}"
    return f"TYPE_CHANGED: {changed}" if changed else ""


def _changed_messages(writer: str, reader: str) -> str:
    """Returns which fields have other types in the second file."""
    before, after = (
        {(m.name, f.number): f.type for m in _messages(t) for f in m.field}
        for t in (writer, reader)
    )
    changed = [at for at, kind in before.items() if after.get(at, kind) != kind]
    return f"FIELD_SCALAR_KIND_CHANGED: {changed}" if changed else ""


def _messages(text: str) -> Iterable[DescriptorProto]:
    return FileDescriptorProto.FromString(base64.b64decode(text, validate=True)).message_type


def _error(status: int, code: int, message: str) -> web.Response:
    return web.json_response({"error_code": code, "message": message}, status=status)


@web.middleware
async def _guard(request: web.Request, handler: Any) -> Any:
    registry = request.app[_REGISTRY]
    registry.requests.append(request.path)
    if registry.failures:
        registry.failures -= 1
        return _error(500, 50001, "Error in the backend data store")
    if registry._user is not None:
        expected = f"Basic {base64.b64encode(registry._user.encode()).decode()}"
        if request.headers.get("Authorization") != expected:
            return _error(401, 401, "Unauthorized")
    return await handler(request)


@_ROUTES.get("/schemas/ids/{id}")
async def schema_of_id(request: web.Request) -> web.Response:
    registry, id = request.app[_REGISTRY], int(request.match_info["id"])
    if not 1 <= id <= len(registry.schemas):
        return _error(404, 40403, f"Schema {id} not found")
    return web.json_response(registry.schemas[id - 1])


@_ROUTES.get("/subjects")
async def subjects(request: web.Request) -> web.Response:
    return web.json_response(list(request.app[_REGISTRY].subjects))


@_ROUTES.get("/subjects/{subject}/versions")
async def versions(request: web.Request) -> web.Response:
    found = request.app[_REGISTRY].subjects.get(request.match_info["subject"])
    if found is None:
        return _error(404, 40401, f"Subject '{request.match_info['subject']}' not found.")
    return web.json_response(list(range(1, len(found) + 1)))


@_ROUTES.post("/subjects/{subject}/versions")
async def register(request: web.Request) -> web.Response:
    registry, subject = request.app[_REGISTRY], request.match_info["subject"]
    try:
        schema = _given(await request.json())
    except SchemaParseException as error:
        return _error(422, 42201, f"Invalid schema: {error}")
    if problem := registry.incompatibility(subject, schema):
        return _error(
            409, 409, f"Schema being registered is incompatible with an earlier schema: {problem}"
        )
    return web.json_response({"id": registry.add(subject, schema)})


@_ROUTES.post("/subjects/{subject}")
async def lookup(request: web.Request) -> web.Response:
    registry, subject = request.app[_REGISTRY], request.match_info["subject"]
    versions = registry.subjects.get(subject)
    if versions is None:
        return _error(404, 40401, f"Subject '{subject}' not found.")
    schema = _given(await request.json())
    for version, id in enumerate(versions, 1):
        if registry.schemas[id - 1] == schema:
            return web.json_response({"subject": subject, "id": id, "version": version, **schema})
    return _error(404, 40403, "Schema not found")


@_ROUTES.put("/config/{subject}")
async def configure(request: web.Request) -> web.Response:
    level = (await request.json())["compatibility"]
    request.app[_REGISTRY].compatibility[request.match_info["subject"]] = level
    return web.json_response({"compatibility": level})


def _given(body: dict[str, Any]) -> dict[str, Any]:
    kind = body.get("schemaType", "AVRO")
    if kind == "AVRO":
        parse(body["schema"])
    elif kind == "JSON":
        json.loads(body["schema"])
    found = {"schema": body["schema"], "schemaType": kind}
    if references := body.get("references"):
        found["references"] = references
    return found
