"""Builds the OpenAPI document from the table of access and the descriptions of routes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import firesteel
from dispatcher.rest.openapi.routes import DESCRIBED, JSON, TEXT, Route
from dispatcher.rest.openapi.shapes import Schema, schema
from firesteel.common.security.access import ROUTES, Access

FILES = re.compile(r"GET /(app|vendor|app\.css|favicon\.svg)?(/|$)")  # of the dashboard
_LOGS = re.compile(r"/(log|stdout|logs/{file})$")
_FLINKS = Route(summary="As in Flink 2.3.", answer=object, status="2XX")
_ERRORS = {"errors": [str]}


def document() -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route, access in ROUTES.items():
        if FILES.match(route):
            continue
        verb, path = route.split(" ", 1)
        paths.setdefault(path, {})[verb.lower()] = _operation(route, path, access)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Firesteel",
            "version": firesteel.__version__,
            "description": "Times are milliseconds since 1970, shares are 0 to 1, and null is"
            " unknown. Flink's routes are also served below /v1.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Errors": schema(_ERRORS)},
        },
        "security": [{"token": []}],
    }


def _operation(route: str, path: str, access: Access) -> Schema:
    described = DESCRIBED.get(route) or replace(_FLINKS, media=TEXT if _LOGS.search(path) else JSON)
    names = re.findall(r"{(\w+)}", path)
    operation: Schema = {
        "summary": described.summary,
        "description": f"For {access}." if not access.public else "For everybody.",
        "operationId": re.sub(r"\W+", "_", route).strip("_"),
        "tags": ["Firesteel" if path.startswith("/firesteel/") else "Flink"],
        "parameters": [
            *(_parameter(name, "path", str) for name in names),
            *(_parameter(name, "query", kind) for name, kind in described.query.items()),
        ],
        "responses": {
            str(described.status): _response(described),
            "default": {
                "description": "The request was refused, or failed.",
                "content": {JSON: {"schema": {"$ref": "#/components/schemas/Errors"}}},
            },
        },
    }
    if described.body is not None:
        operation["requestBody"] = _body(JSON, described.body)
    if described.form is not None:
        operation["requestBody"] = _body("multipart/form-data", described.form)
    if access.public:
        operation["security"] = []
    return operation


def _parameter(name: str, place: str, kind: type) -> Schema:
    return {"name": name, "in": place, "required": place == "path", "schema": schema(kind)}


def _response(described: Route) -> Schema:
    if described.answer is None:
        return {"description": "Done."}
    return {
        "description": "The answer.",
        "content": {described.media: {"schema": schema(described.answer)}},
    }


def _body(media: str, fields: Mapping[str, Any]) -> Schema:
    properties = {
        name: {"type": "string", "format": "binary"} if kind is bytes else schema(kind)
        for name, kind in fields.items()
    }
    return {"content": {media: {"schema": {"type": "object", "properties": properties}}}}
