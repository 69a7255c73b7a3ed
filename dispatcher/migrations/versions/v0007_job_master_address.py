"""Adds the address of a job's JobMaster, so that the next Dispatcher can probe it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column(
        "jobs", sa.Column("job_master_address", sa.Text, nullable=False, server_default="")
    )
