"""Adds the id that distinguishes this store from any other."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table("identity", sa.Column("store_id", sa.String(32), primary_key=True))
