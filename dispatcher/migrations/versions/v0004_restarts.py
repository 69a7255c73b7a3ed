"""Adds the state of a job's restart strategy, which its next JobMaster continues."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("restart_history", sa.Text, nullable=False, server_default=""))
