"""The versions of the job store's schema, and the migrations to the newest one.

To change the tables, add a module to versions/ with the previous revision as its `down_revision`,
and set HEAD. A database at HEAD is opened without alembic, whose import takes longer than the rest
of opening a store.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

FIRST = "0001"  # also the version of databases that predate versions
HEAD = "0013"
KNOWN = (
    FIRST,
    "0002",
    "0003",
    "0004",
    "0005",
    "0006",
    "0007",
    "0008",
    "0009",
    "0010",
    "0011",
    "0012",
    HEAD,
)

# Columns that the last releases before FIRST did not have; read if a database has no version.
FIRST_COLUMNS = {
    "jobs": ("cancel_requested", "failure", "forgotten"),
    "job_graph_blobs": ("blob_hash",),
}

_version = sa.Table(
    "alembic_version", sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True)
)


def current_version(connection: sa.Connection) -> str | None:
    """Returns None if the database has no version."""
    if not sa.inspect(connection).has_table(_version.name):
        return None
    return connection.execute(sa.select(_version.c.version_num)).scalar()


def set_version(connection: sa.Connection, version: str) -> None:
    _version.create(connection, checkfirst=True)
    connection.execute(sa.delete(_version))
    connection.execute(sa.insert(_version).values(version_num=version))


def upgrade(connection: sa.Connection, *, to: str = HEAD) -> None:
    """Runs the migrations from the database's version to `to`, in the connection's transaction."""
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    scripts = ScriptDirectory.from_config(config)
    with EnvironmentContext(
        config,
        scripts,
        fn=lambda revision, context: scripts._upgrade_revs(to, revision),  # type: ignore[arg-type]
    ) as environment:
        environment.configure(connection=connection)
        with environment.begin_transaction():
            environment.run_migrations()
