"""The tables of tokens and of the audit log, in the database of the job store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from firesteel.common.rpc.access_messages import AuditEntry, TokenDescription

MAX_ENTRIES = 100_000  # of the audit log, the newest

metadata = sa.MetaData()
_tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("token_id", sa.String(32), primary_key=True),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("expires_ms", sa.BigInteger, nullable=False),
    sa.Column("revoked_ms", sa.BigInteger, nullable=False),  # 0: it is not revoked
    sa.Column("own_jobs", sa.Boolean, nullable=False, server_default=sa.false()),
)
_audit = sa.Table(
    "audit",
    metadata,
    sa.Column("entry_id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("time_ms", sa.BigInteger, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("action", sa.String(64), nullable=False),
    sa.Column("job_id", sa.String(64), nullable=False),
    sa.Column("outcome", sa.String(64), nullable=False),
    sa.Column("count", sa.Integer, nullable=False, server_default="1"),
    sa.Index("audit_by_job", "job_id"),
)


class AccessStore:
    """`read` opens a connection to the database, and `write` a transaction of the job store. Raises
    what they raise.
    """

    def __init__(
        self,
        read: Callable[[], AbstractContextManager[Connection]],
        write: Callable[[], AbstractContextManager[Connection]],
    ) -> None:
        self._read = read
        self._write = write

    def add_token(self, token: TokenDescription) -> None:
        with self._write() as connection:
            connection.execute(sa.insert(_tokens).values(**asdict(token)))

    def tokens(self) -> list[TokenDescription]:
        """Returns all tokens that were created here, the newest first."""
        query = sa.select(_tokens).order_by(_tokens.c.created_ms.desc(), _tokens.c.token_id)
        with self._read() as connection:
            return [TokenDescription(**row._mapping) for row in connection.execute(query)]

    def revoke(self, token_id: str, now_ms: int) -> bool:
        """Revokes a token; returns whether there is one. One that is revoked stays as it is."""
        known = _tokens.c.token_id == token_id
        with self._write() as connection:
            connection.execute(
                sa.update(_tokens).where(known, _tokens.c.revoked_ms == 0).values(revoked_ms=now_ms)
            )
            return (
                connection.execute(sa.select(_tokens.c.token_id).where(known)).first() is not None
            )

    def append(self, entries: Sequence[AuditEntry]) -> None:
        with self._write() as connection:
            connection.execute(sa.insert(_audit), [asdict(entry) for entry in entries])
            newest = sa.select(sa.func.max(_audit.c.entry_id)).scalar_subquery()
            connection.execute(sa.delete(_audit).where(_audit.c.entry_id <= newest - MAX_ENTRIES))

    def audit(self, *, limit: int, job_id: str = "") -> list[AuditEntry]:
        """Returns the newest entries first, of one job or of all."""
        columns = [column for column in _audit.c if column.name != "entry_id"]
        query = sa.select(*columns).order_by(_audit.c.entry_id.desc()).limit(limit)
        if job_id:
            query = query.where(_audit.c.job_id == job_id)
        with self._read() as connection:
            return [AuditEntry(**row._mapping) for row in connection.execute(query)]
