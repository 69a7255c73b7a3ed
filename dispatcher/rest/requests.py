"""Reads requests of the REST API, and refuses bad ones."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from aiohttp import web

from firesteel.common.config import options
from firesteel.common.security.roles import Identity

TOKEN = web.RequestKey("token", str)  # the caller's, verified
IDENTITY = web.RequestKey("identity", Identity)
Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Refusal(Exception):
    """A request is answered with an HTTP status and this message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def json_body(request: web.Request, *fields: str) -> Mapping[str, Any]:
    """Returns the JSON object of the body; an empty one if there is none. Raises Refusal for fields
    other than `fields`, unless there are none of them.
    """
    content = await request.read()
    if not content.strip():
        return {}
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refusal(400, "the body is not a JSON object")
    for name in body if fields else ():
        if name not in fields:
            raise Refusal(
                400, f"the field {name[:80]!r} is unknown; allowed are {', '.join(fields)}"
            )
    return body


def text_of(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise Refusal(400, f"{name} must be a string, not {value!r}")
    return value or ""


def one_of(body: Mapping[str, Any], name: str, *allowed: str) -> str:
    """Returns one of `allowed`, or an empty text if there is none."""
    value = text_of(body, name)
    if value and value not in allowed:
        raise Refusal(400, f"{name} {value[:80]!r} is not one of {', '.join(allowed)}")
    return value


def path_of(body: Mapping[str, Any], name: str) -> str:
    """Returns a path on the cluster, or an empty text. Raises Refusal for a relative one: a client
    does not know the current directory of a process.
    """
    path = text_of(body, name)
    if path and not path.startswith("/") and "://" not in path:
        raise Refusal(400, f"{name}={path[:80]!r} is a relative path; expected an absolute one")
    return path


def check_directories(configuration: Mapping[str, Any]) -> None:
    """Raises Refusal if a job's directory of checkpoints or savepoints is a relative path."""
    for option in (options.CHECKPOINT_DIR, options.SAVEPOINT_DIR):
        path_of(configuration, option.key)


def required_path_of(body: Mapping[str, Any], name: str) -> str:
    path = path_of(body, name)
    if not path:
        raise Refusal(400, f"{name} is missing")
    return path


def flag_of(body: Mapping[str, Any], name: str) -> bool:
    """Returns false if there is none."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise Refusal(400, f"{name} must be true or false, not {value!r}")
    return bool(value)


def choice_of(request: web.Request, name: str, allowed: Sequence[str]) -> str:
    """Returns the query's value; the first one that is allowed if it is missing or empty."""
    text = request.query.get(name) or allowed[0]
    if text not in allowed:
        raise Refusal(400, f"{name}={text!r} is not allowed; expected {', '.join(allowed)}")
    return text


def time_of(request: web.Request, name: str) -> int:
    """Returns milliseconds since 1970; 0 if the query has none."""
    text = request.query.get(name) or "0"
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise Refusal(400, f"{name}={text!r} is not a time in milliseconds since 1970")
    return int(text)


def count_of(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Refusal(400, f"{name}={text!r} is not a number")
    return int(text)
