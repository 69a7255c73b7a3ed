"""The gRPC servicer of proto/access.proto: tokens, and the audit log's table."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import grpc
import sqlalchemy as sa

from dispatcher.access_store import AccessStore
from dispatcher.job_store import Fenced
from firesteel._proto import access_pb2, access_pb2_grpc
from firesteel.common.rpc.access_messages import (
    AUDIT_ENTRY,
    CREATED_TOKEN,
    TOKEN_DESCRIPTION,
    AuditEntry,
    CreatedToken,
    TokenDescription,
)
from firesteel.common.rpc.bearer import caller
from firesteel.common.rpc.status import Reason, abort
from firesteel.common.security.roles import PEOPLE, Role
from firesteel.common.security.security import Security

MAX_VALID_S = 5 * 365 * 86_400
_MAX_SUBJECT_CHARS = 200
_MAX_ENTRIES = 10_000

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class AccessServicer(access_pb2_grpc.AccessServicer):
    def __init__(
        self,
        store: AccessStore,
        security: Security,
        *,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._security = security
        self._now_s = now_s

    async def WhoAmI(
        self, request: access_pb2.WhoAmIRequest, context: _Context
    ) -> access_pb2.WhoAmIResponse:
        who = caller()
        return access_pb2.WhoAmIResponse(
            subject=who.subject, role=who.role.value, expires_ms=int(who.expires_s * 1000)
        )

    async def RunProgram(
        self, request: access_pb2.RunProgramRequest, context: _Context
    ) -> access_pb2.RunProgramResponse:
        return access_pb2.RunProgramResponse()  # the call is in the audit log

    async def CreateToken(
        self, request: access_pb2.CreateTokenRequest, context: _Context
    ) -> access_pb2.CreateTokenResponse:
        role = await _role(request.role, context)
        if not 0 < len(request.subject) <= _MAX_SUBJECT_CHARS or not request.subject.isprintable():
            await abort(
                context,
                Reason.INVALID_REQUEST,
                f"{request.subject[:80]!r} is not the name of a token's bearer: expected 1 to"
                f" {_MAX_SUBJECT_CHARS} printable characters",
            )
        if not 0 < request.valid_s <= MAX_VALID_S:
            await abort(
                context,
                Reason.INVALID_REQUEST,
                f"a token cannot be valid for {request.valid_s} s: expected 1 s to five years",
            )
        if request.own_jobs and role not in (Role.OPERATOR, Role.SUBMITTER):
            await abort(
                context,
                Reason.INVALID_REQUEST,
                f"a token of a {role.value} cannot be limited to jobs of its bearer: expected an"
                " operator or a submitter",
            )
        token = self._security.token_for(
            request.subject, role, valid_s=request.valid_s, own_jobs=request.own_jobs
        )
        identity = self._security.verifier.verify(token)
        stored = TokenDescription(
            token_id=identity.token_id,
            subject=request.subject,
            role=role.value,
            created_by=caller().subject,
            created_ms=int(self._now_s() * 1000),
            expires_ms=int(identity.expires_s * 1000),
            own_jobs=request.own_jobs,
        )
        await self._in_store(context, lambda: self._store.add_token(stored))
        certificate = self._security.client_certificate(request.subject, role, request.valid_s)
        return CREATED_TOKEN.encode(
            CreatedToken(
                token=token,
                description=stored,
                certificate=certificate.certificate,
                key=certificate.key,
                authority=certificate.authority,
            )
        )

    async def ListTokens(
        self, request: access_pb2.ListTokensRequest, context: _Context
    ) -> access_pb2.ListTokensResponse:
        tokens: Sequence[TokenDescription] = await self._in_store(context, self._store.tokens)
        return access_pb2.ListTokensResponse(
            tokens=[TOKEN_DESCRIPTION.encode(token) for token in tokens]
        )

    async def RevokeToken(
        self, request: access_pb2.RevokeTokenRequest, context: _Context
    ) -> access_pb2.RevokeTokenResponse:
        now_ms = int(self._now_s() * 1000)
        known = await self._in_store(context, lambda: self._store.revoke(request.token_id, now_ms))
        if not known:
            await abort(
                context,
                Reason.INVALID_REQUEST,
                f"no token {request.token_id[:80]!r} was created on this cluster; `firesteel token"
                " list` shows them",
            )
        await asyncio.to_thread(self._security.revoke, [request.token_id])
        return access_pb2.RevokeTokenResponse()

    async def ReadAudit(
        self, request: access_pb2.ReadAuditRequest, context: _Context
    ) -> access_pb2.ReadAuditResponse:
        limit = min(request.limit or 100, _MAX_ENTRIES)
        entries: Sequence[AuditEntry] = await self._in_store(
            context, lambda: self._store.audit(limit=limit, job_id=request.job_id)
        )
        return access_pb2.ReadAuditResponse(
            entries=[AUDIT_ENTRY.encode(entry) for entry in entries]
        )

    async def ListRevoked(
        self, request: access_pb2.ListRevokedRequest, context: _Context
    ) -> access_pb2.ListRevokedResponse:
        return access_pb2.ListRevokedResponse(token_ids=sorted(self._security.revoked))

    async def _in_store(self, context: _Context, call: Callable[[], Any]) -> Any:
        try:
            return await asyncio.to_thread(call)
        except sa.exc.SQLAlchemyError as error:
            reason = str(getattr(error, "orig", error)).splitlines()[0]
            await abort(
                context,
                Reason.STORE_UNAVAILABLE,
                f"the cluster's job store does not answer ({reason}); try again",
            )
        except Fenced as error:
            await abort(context, Reason.NOT_LEADER, str(error))


async def _role(name: str, context: _Context) -> Role:
    with contextlib.suppress(ValueError):
        if (role := Role(name)).is_person:
            return role
    allowed = ", ".join(role.value for role in PEOPLE)
    await abort(context, Reason.INVALID_REQUEST, f"{name[:80]!r} is not a role; allowed: {allowed}")
    raise AssertionError("abort raises")
