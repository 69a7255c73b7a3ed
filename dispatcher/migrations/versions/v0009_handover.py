"""Renames the column of the state that a JobMaster leaves for the next one."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.alter_column("jobs", "analysis", new_column_name="handover")
