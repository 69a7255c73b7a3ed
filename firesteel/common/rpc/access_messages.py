"""The messages of proto/access.proto, as the Dispatcher stores them and clients see them."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel._proto import access_pb2
from firesteel.common.rpc.mapping import Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDescription:
    """Describes a token. The token itself is not stored. Times are milliseconds since 1970."""

    token_id: str
    subject: str
    role: str
    created_by: str
    created_ms: int
    expires_ms: int
    revoked_ms: int = 0  # 0: it is not revoked
    own_jobs: bool = False  # it is for the jobs of its bearer alone


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """A call that changes something, or that was refused to its caller."""

    time_ms: int  # since 1970
    subject: str  # empty: the caller did not prove who it is
    role: str
    address: str
    action: str  # the name of a method
    job_id: str  # empty: of no job
    outcome: str  # OK, or the reason of the refusal
    count: int = 1  # of refused calls, of which this one was the last


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedToken:
    """A new token, which is shown only once, and the certificate with which its bearer connects
    over TLS, in PEM.
    """

    token: str
    description: TokenDescription
    certificate: bytes
    key: bytes
    authority: bytes


TOKEN_DESCRIPTION = Wire(TokenDescription, access_pb2.Token)
AUDIT_ENTRY = Wire(AuditEntry, access_pb2.AuditEntry)
CREATED_TOKEN = Wire(CreatedToken, access_pb2.CreateTokenResponse)
