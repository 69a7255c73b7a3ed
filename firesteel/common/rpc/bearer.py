"""Calls that carry a token, and who made the call that is being answered."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

from firesteel.common.security.credentials import BEARER
from firesteel.common.security.roles import Identity

AUTHORIZATION = "authorization"
# A REST server adds its token to the calls that it passes on, and the address of its caller.
REST_TOKEN = "firesteel-rest-token"
CALLER_ADDRESS = "firesteel-caller-address"
CALL_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
answering: ContextVar[Identity] = ContextVar("answering")


def caller() -> Identity:
    """Returns who made the call that a servicer is answering. Only with authentication."""
    return answering.get()


class _Channel(Protocol):
    """The methods of a channel that generated stubs call."""

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any: ...
    def unary_stream(self, *args: Any, **kwargs: Any) -> Any: ...
    def stream_unary(self, *args: Any, **kwargs: Any) -> Any: ...
    def stream_stream(self, *args: Any, **kwargs: Any) -> Any: ...


def carry_token(channel: _Channel, token: Callable[[], str]) -> None:
    """Makes every call on the channel, of `grpc` or `grpc.aio`, carry the token of its time."""

    def carrying(make: Callable[..., Any]) -> Callable[..., Any]:
        def multi_callable(*args: Any, **kwargs: Any) -> Any:
            call = make(*args, **kwargs)

            def with_token(*call_args: Any, metadata: Any = None, **call_kwargs: Any) -> Any:
                own = (AUTHORIZATION, f"{BEARER}{token()}")
                return call(*call_args, metadata=(*(metadata or ()), own), **call_kwargs)

            return with_token

        return multi_callable

    for kind in CALL_KINDS:
        setattr(channel, kind, carrying(getattr(channel, kind)))
