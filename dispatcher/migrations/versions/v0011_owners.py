"""Adds the owners of jobs, and whether a token is for the jobs of its bearer alone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("owner", sa.Text, nullable=False, server_default=""))
    own_jobs = sa.Column("own_jobs", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("tokens", own_jobs)
