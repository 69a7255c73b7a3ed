"""Adds the tables of tokens and of the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "tokens",
        sa.Column("token_id", sa.String(32), primary_key=True),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
        sa.Column("revoked_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "audit",
        sa.Column("entry_id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("time_ms", sa.BigInteger, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("outcome", sa.String(64), nullable=False),
    )
    op.create_index("audit_by_job", "audit", ["job_id"])
