"""Answers as bytes, each encoded once for all viewers."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import zlib
from typing import Any

from aiohttp import web

_WORTH_COMPRESSING_BYTES = 1_024
_GZIP = 16 + zlib.MAX_WBITS


class Answer:
    """An answer to a GET request. Its ETag is that of its content."""

    def __init__(self, content: Any, *, unknown: int | None = None) -> None:
        self._body = encoded(content, unknown=unknown)
        self._etag = f'"{hashlib.blake2b(self._body, digest_size=16).hexdigest()}"'

    @functools.cached_property
    def _compressed(self) -> bytes:
        compressor = zlib.compressobj(1, wbits=_GZIP)
        return compressor.compress(self._body) + compressor.flush()

    def response(self, request: web.Request) -> web.Response:
        headers = {"ETag": self._etag, "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match") == self._etag:
            return web.Response(status=304, headers=headers)
        body = self._body
        if len(body) > _WORTH_COMPRESSING_BYTES and "gzip" in request.headers.get(
            "Accept-Encoding", ""
        ):
            headers["Content-Encoding"] = "gzip"
            body = self._compressed
        return web.Response(body=body, content_type="application/json", headers=headers)


def encoded(content: Any, *, unknown: int | None = None) -> bytes:
    """Returns the JSON of an answer. `unknown` replaces NaN and infinities, which JSON does not
    have.
    """
    try:
        return _json(content)
    except ValueError:
        return _json(_finite(content, unknown))


def _json(content: Any) -> bytes:
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def _finite(content: Any, unknown: int | None) -> Any:
    match content:
        case float() if not math.isfinite(content):
            return unknown
        case dict():
            return {key: _finite(value, unknown) for key, value in content.items()}
        case list() | tuple():
            return [_finite(value, unknown) for value in content]
    return content
