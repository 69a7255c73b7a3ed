"""Adds the parallelism of jobs that were rescaled."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("parallelism", sa.LargeBinary))
