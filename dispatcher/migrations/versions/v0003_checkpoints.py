"""Adds complete checkpoints, and whether a new JobMaster continues a job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column(
        "jobs", sa.Column("recovers", sa.Boolean, nullable=False, server_default=sa.false())
    )
    op.create_table(
        "checkpoints",
        sa.Column("job_id", sa.String(32), primary_key=True),
        sa.Column("checkpoint_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("triggered_ms", sa.BigInteger, nullable=False),
        sa.Column("completed_ms", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
    )
