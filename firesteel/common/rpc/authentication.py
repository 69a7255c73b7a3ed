"""Authenticates the caller of each gRPC call, and checks the call against the table of access.

A caller is who its token says (`authorization: Bearer ...`). Over mutual TLS, a process without a
token is who its certificate says. Messages have no say in it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from firesteel.common.logs import get_logger
from firesteel.common.rpc.bearer import (
    AUTHORIZATION,
    CALL_KINDS,
    CALLER_ADDRESS,
    REST_TOKEN,
    answering,
)
from firesteel.common.rpc.status import Reason, abort
from firesteel.common.security.access import Access, access_of
from firesteel.common.security.authority import identity_of
from firesteel.common.security.credentials import BEARER
from firesteel.common.security.limits import CallLimits
from firesteel.common.security.roles import Identity, Role
from firesteel.common.security.tokens import ExpiredToken, TokenVerifier
from firesteel.errors import FiresteelError

log = get_logger(__name__)

_MAX_ADDRESS_CHARS = 100
_NOT_AUDITED: AbstractContextManager[None] = contextlib.nullcontext()
_HOW_TO = (
    "the command line finds the token of a cluster that this user has started; for another one, set"
    " security.token-file or FIRESTEEL_TOKEN"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call, for the audit log."""

    method: str  # /package.Service/Method
    identity: Identity | None  # None: the caller did not prove who it is
    peer: str
    job_id: str
    outcome: str  # OK, or the reason of the refusal


class Authentication:
    """Refuses calls whose callers are unknown, or not allowed. `audit` is called for each refused
    call, and after each call that the table of access wants audited. `owner_of` returns the owner
    of a job; None: there is no such job.
    """

    def __init__(
        self,
        verifier: TokenVerifier,
        audit: Callable[[Call], None] | None = None,
        owner_of: Callable[[str], str | None] = lambda job_id: None,
        limits: CallLimits | None = None,
    ) -> None:
        self._verifier = verifier
        self._owner_of = owner_of
        self._audit = audit
        self._limits = limits  # None: none

    def checking(self, handler: Any, name: str) -> Any:
        """Returns the handler of a method with these checks before each call."""
        access = access_of(name)
        if access.public:
            return handler
        # Bytes of unknown callers are not parsed. Streams are parsed while they are read.
        parse = None if handler.request_streaming else handler.request_deserializer
        wrapped = {
            kind: self._wrapped(getattr(handler, kind), name, access, parse) for kind in CALL_KINDS
        }
        if parse is not None:
            wrapped["request_deserializer"] = None
        return handler._replace(**wrapped)

    def _wrapped(
        self, method: Any, name: str, access: Access, parse: Callable[[bytes], Any] | None
    ) -> Any:
        if method is None:  # the handler is of another kind
            return None
        if inspect.isasyncgenfunction(method):

            async def streaming(received: Any, context: Any) -> AsyncIterator[Any]:
                request, audited = await self._admit(name, access, received, context, parse)
                with audited:
                    async with contextlib.aclosing(method(request, context)) as answers:
                        async for answer in answers:
                            yield answer

            return streaming

        async def plain(received: Any, context: Any) -> Any:
            request, audited = await self._admit(name, access, received, context, parse)
            with audited:
                return await method(request, context)

        return plain

    async def _admit(
        self,
        name: str,
        access: Access,
        received: Any,
        context: Any,
        parse: Callable[[bytes], Any] | None,
    ) -> tuple[Any, AbstractContextManager[None]]:
        """Returns the request of a call that is allowed, and what surrounds the call; ends another
        call.
        """
        request, job_id = received, ""
        try:
            identity = self._identity(context)
            self._check_rate(identity)
            if parse is not None:
                request = _parsed(received, parse, identity)
                job_id = _job_of(request)
            _check(identity, name, access)
            if identity.own_jobs and access.for_owners:
                self._check_owner(identity, job_id)
        except _Refused as refused:
            address = self._address(context)
            if too_many := self._failed_too_often(refused, address):
                await abort(context, Reason.TOO_MANY_CALLS, too_many)
            log.warning("refused a call", peer=address, method=name, reason=str(refused))
            self._record(name, address, refused.identity, job_id, refused.reason.name)
            await abort(context, refused.reason, str(refused), **refused.metadata)
        answering.set(identity)
        if not access.audited:
            return request, _NOT_AUDITED
        return request, self._audited(name, context, identity, job_id)

    @contextlib.contextmanager
    def _audited(self, name: str, context: Any, identity: Identity, job_id: str) -> Iterator[None]:
        """Records how the call ends."""
        address = self._address(context)  # gRPC may crash if asked after the call's end
        outcome = grpc.StatusCode.CANCELLED.name
        try:
            yield
            outcome = grpc.StatusCode.OK.name
        except grpc.aio.AbortError:
            outcome = context.code().name
            raise
        finally:
            self._record(name, address, identity, job_id, outcome)

    def _identity(self, context: Any) -> Identity:
        """Returns who calls. Raises _Refused if that is not proved."""
        given = dict(context.invocation_metadata() or ()).get(AUTHORIZATION)
        try:
            if given is not None:
                return self._verifier.verify(str(given).removeprefix(BEARER))
            certificates = (context.auth_context() or {}).get("x509_pem_cert", ())
            # The certificate of a person opens connections alone: it cannot be revoked.
            if certificates and not (identity := identity_of(certificates[0])).role.is_person:
                return identity
        except ExpiredToken as error:
            raise _Refused(Reason.CREDENTIAL_EXPIRED, str(error)) from None
        except FiresteelError as error:
            raise _Refused(Reason.CREDENTIAL_INVALID, f"{error}; {_HOW_TO}") from None
        raise _Refused(Reason.NO_CREDENTIAL, f"the call carries no credential; {_HOW_TO}")

    def _check_rate(self, identity: Identity) -> None:
        """Raises _Refused if the caller has called too often."""
        if self._limits is not None and (too_many := self._limits.called(identity)):
            raise _Refused(Reason.TOO_MANY_CALLS, too_many, identity)

    def _failed_too_often(self, refused: _Refused, address: str) -> str:
        """Returns why a refused call is neither logged nor audited, or an empty text."""
        if self._limits is None or refused.identity is not None:
            return ""
        return self._limits.failed(address)

    def _check_owner(self, identity: Identity, job_id: str) -> None:
        """Raises _Refused unless the caller owns the job."""
        owner = self._owner_of(job_id) if job_id else ""
        if owner is None or owner == identity.subject:  # the servicer refuses unknown jobs
            return
        of_whom = f", which is {owner}'s" if owner else ""
        job = f"the job {job_id[:80]}{of_whom}" if job_id else "anything but its own jobs"
        raise _Refused(
            Reason.NOT_ALLOWED,
            f"{identity} may not act on {job}",
            identity,
            role=identity.role.value,
            job_id=job_id[:80],
        )

    def _address(self, context: Any) -> str:
        """Returns the address of the caller. A REST server vouches for that of its client."""
        metadata = dict(context.invocation_metadata() or ())
        with contextlib.suppress(FiresteelError):
            if (token := metadata.get(REST_TOKEN)) and (
                self._verifier.verify(str(token)).role is Role.REST
            ):
                return str(metadata.get(CALLER_ADDRESS, ""))[:_MAX_ADDRESS_CHARS]
        return str(context.peer())

    def _record(
        self, name: str, address: str, identity: Identity | None, job_id: str, outcome: str
    ) -> None:
        if self._audit is not None:
            self._audit(
                Call(
                    method=name,
                    identity=identity,
                    peer=address,
                    job_id=job_id,
                    outcome=outcome,
                )
            )


class _Refused(Exception):
    def __init__(
        self,
        reason: Reason,
        message: str,
        identity: Identity | None = None,
        **metadata: object,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.identity = identity  # None: not proved
        self.metadata = metadata


def _parsed(received: bytes, parse: Callable[[bytes], Any], identity: Identity) -> Any:
    """Raises _Refused for bytes that are not the method's message."""
    try:
        return parse(received)
    except DecodeError as error:
        raise _Refused(Reason.INVALID_REQUEST, str(error), identity) from None


def _check(identity: Identity, name: str, access: Access) -> None:
    """Raises _Refused unless the caller may call the method."""
    if not access.allows(identity):
        raise _Refused(
            Reason.NOT_ALLOWED,
            f"{identity} may not call {name.rpartition('/')[2]}, which is for: {access}",
            identity,
            role=identity.role.value,
            needed=access.least.value if access.least else "",
        )


def _job_of(request: Any) -> str:
    """Returns the id of the job that a request is about; empty: of none, or a stream."""
    graph = getattr(request, "job_graph", None)
    return str(getattr(request if graph is None else graph, "job_id", ""))
