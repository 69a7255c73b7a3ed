"""Creates the tables of jobs, their graphs and files, and the Dispatcher's epoch."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("job_id", sa.String(32), primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("graph_id", sa.String(32), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("start_ms", sa.BigInteger, nullable=False),
        sa.Column("end_ms", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("job_master_id", sa.String(32)),
        sa.Column("cancel_requested", sa.Boolean, nullable=False),
        sa.Column("failure", sa.Text, nullable=False),
        sa.Column("final_details", sa.LargeBinary),
        sa.Column("forgotten", sa.Boolean, nullable=False),
    )
    op.create_table(
        "job_graphs",
        sa.Column("graph_id", sa.String(32), primary_key=True),
        sa.Column("graph", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "job_graph_blobs",
        sa.Column("graph_id", sa.String(32), primary_key=True),
        sa.Column("blob_hash", sa.String(32), primary_key=True),
    )
    op.create_table(
        "leaders",
        sa.Column("service", sa.String(32), primary_key=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
    )
