"""Makes the text of every refused call valid, whatever an error message quotes.

gRPC encodes the text of a status as UTF-8. A text with lone surrogates, as in the name of a file
that is not UTF-8, would end the call with `UnicodeEncodeError` instead of the reason.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from firesteel.text import valid_text

_METHODS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class ValidStatusText(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Gives each method a context whose `abort` and `set_details` accept any text."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:  # unknown method
            return None
        wrapped = {kind: _wrapped(getattr(handler, kind)) for kind in _METHODS}
        return handler._replace(**wrapped)


class _Context:
    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> None:
        await self._context.abort(code, valid_text(details), trailing_metadata)

    def set_details(self, details: str) -> None:
        self._context.set_details(valid_text(details))


def _wrapped(method: Any) -> Any:
    if method is None:  # the handler is of another kind
        return None
    if inspect.isasyncgenfunction(method):

        async def streaming(request: Any, context: Any) -> AsyncIterator[Any]:
            async with contextlib.aclosing(method(request, _Context(context))) as answers:
                async for answer in answers:
                    yield answer

        return streaming

    async def plain(request: Any, context: Any) -> Any:
        return await method(request, _Context(context))

    return plain
