"""What the analysis of a job's plan has found, which its next JobMaster goes on with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("analysis", sa.LargeBinary, nullable=True))
