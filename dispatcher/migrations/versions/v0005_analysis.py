"""Adds the analysis of a job's plan, which its next JobMaster needs to adopt tasks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("analysis", sa.LargeBinary, nullable=True))
