"""Serves the OpenAPI document, and a page that shows it."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from aiohttp import web

from dispatcher.rest.answers import Answer
from dispatcher.rest.openapi.document import document
from dispatcher.rest.requests import Handler

_PAGE = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <title>Firesteel's REST API</title>
  <link rel="icon" href="../../favicon.svg" type="image/svg+xml">
  <link rel="stylesheet" href="../../app.css">
  <script type="module" src="../../app/api_docs.js"></script>
</head>
<body>
  <main><h1>REST API</h1><p id="about"></p><div id="routes"></div></main>
</body>
</html>
"""


class OpenApiRoutes:
    def handlers(self) -> Mapping[str, Handler]:
        return {
            "GET /firesteel/v1/openapi.json": self._document,
            "GET /firesteel/v1/docs": self._page,
        }

    @functools.cached_property
    def _answer(self) -> Answer:
        return Answer(document())

    async def _document(self, request: web.Request) -> web.Response:
        return self._answer.response(request)

    async def _page(self, request: web.Request) -> web.Response:
        return web.Response(text=_PAGE, content_type="text/html")
