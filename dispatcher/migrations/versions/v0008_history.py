"""Adds the history of a job's statuses and failures, which its next JobMaster continues."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("history", sa.LargeBinary))
