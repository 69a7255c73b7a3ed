"""Adds an index that finds the jobs of a graph when one of them is forgotten."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_index("jobs_by_graph", "jobs", ["graph_id"])
