"""What tells this store from every other one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table("identity", sa.Column("store_id", sa.String(32), primary_key=True))
