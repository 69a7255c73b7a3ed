"""Gives calls that end with an unexpected exception a status like that of every other refusal.

gRPC itself answers such a call with UNKNOWN and the text of the exception, or not at all if that
text is not valid UTF-8.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import structlog

from firesteel.common.rpc.status import Reason, abort
from firesteel.text import text_of

log = structlog.get_logger(__name__)

_METHODS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class UnexpectedErrors(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Logs exceptions of servicers, and ends their calls with INTERNAL_ERROR."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:  # unknown method
            return None
        name = str(handler_call_details.method)  # type: ignore[attr-defined]
        wrapped = {kind: _wrapped(getattr(handler, kind), name) for kind in _METHODS}
        return handler._replace(**wrapped)


def _wrapped(method: Any, name: str) -> Any:
    if method is None:  # the handler is of another kind
        return None
    if inspect.isasyncgenfunction(method):

        async def streaming(request: Any, context: Any) -> AsyncIterator[Any]:
            async with contextlib.aclosing(method(request, context)) as answers:
                try:
                    async for answer in answers:
                        yield answer
                except Exception as error:
                    await _end(context, name, error)

        return streaming

    async def plain(request: Any, context: Any) -> Any:
        try:
            return await method(request, context)
        except Exception as error:
            await _end(context, name, error)

    return plain


async def _end(context: Any, name: str, error: Exception) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    log.error("a call failed unexpectedly", method=name, exc_info=error)
    message = f"{name.rpartition('/')[2]} failed: {type(error).__name__}: {text_of(error)}"
    await abort(context, Reason.INTERNAL_ERROR, message)
