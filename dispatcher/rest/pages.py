"""Serves the dashboard's files at `/`. They hold no data: everybody may read them."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web

from dispatcher.rest.requests import Handler, Refusal

DASHBOARD: Final = Path(__file__).parent / "dashboard"
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""The headers of every answer, also of JSON: a browser shows it as a page."""
_TYPES: Final[Mapping[str, str]] = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    content_type: str
    etag: str

    @classmethod
    def read(cls, path: Path) -> _File:
        content = path.read_bytes()
        return cls(
            gzip.compress(content, mtime=0),
            _TYPES[path.suffix],
            f'"{hashlib.sha256(content).hexdigest()[:32]}"',
        )


class Pages:
    """Reads the folder once. A name in a request is looked up in its listing."""

    def __init__(self, folder: Path = DASHBOARD) -> None:
        self._files = {
            path.relative_to(folder).as_posix(): _File.read(path)
            for path in folder.rglob("*")
            if path.suffix in _TYPES
        }

    def handlers(self) -> Mapping[str, Handler]:
        routes = (
            "/",
            "/app.css",
            "/favicon.svg",
            "/app/{file}",
            "/app/{folder}/{file}",
            "/vendor/{file}",
        )
        return {f"GET {route}": self._serve for route in routes}

    async def _serve(self, request: web.Request) -> web.Response:
        file = self._files.get(request.path.removeprefix("/") or "index.html")
        if file is None:
            raise Refusal(404, f"there is no file {request.path}")
        headers = {"Cache-Control": "no-cache", "ETag": file.etag, "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match") == file.etag:
            return web.Response(status=304, headers=headers)
        headers["Content-Type"] = file.content_type
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return web.Response(body=file.content, headers=headers)
        return web.Response(body=gzip.decompress(file.content), headers=headers)
