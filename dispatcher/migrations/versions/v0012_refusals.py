"""Adds the number of refused calls that an entry of the audit log stands for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.add_column("audit", sa.Column("count", sa.Integer, nullable=False, server_default="1"))
