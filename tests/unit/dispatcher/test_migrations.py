"""The migrations of the job store lead to the tables of a new one."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from dispatcher import migrations
from dispatcher.job_store import JobStore


def _tables(path: Path) -> dict[str, set[str]]:
    engine = sa.create_engine(f"sqlite:///{path}")
    inspector = sa.inspect(engine)
    tables = {
        table: {column["name"] for column in inspector.get_columns(table)}
        for table in inspector.get_table_names()
    }
    engine.dispose()
    return tables


def test_the_newest_version_is_that_of_the_last_module() -> None:
    modules = sorted(Path(migrations.__file__).parent.glob("versions/v*.py"))
    numbers = tuple(module.name[1:5] for module in modules)
    assert numbers == migrations.KNOWN
    assert numbers[-1] == migrations.HEAD


def test_a_store_of_the_version_before_gets_the_tables_of_a_new_one(tmp_path: Path) -> None:
    JobStore(JobStore.sqlite_url(tmp_path)).close()
    new = _tables(tmp_path / "jobs.db")
    old = tmp_path / "old"
    old.mkdir()
    JobStore(JobStore.sqlite_url(old)).close()
    engine = sa.create_engine(JobStore.sqlite_url(old))
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE jobs DROP COLUMN owner")
        connection.exec_driver_sql("ALTER TABLE tokens DROP COLUMN own_jobs")
        connection.exec_driver_sql("ALTER TABLE audit DROP COLUMN count")
        connection.exec_driver_sql("ALTER TABLE jobs DROP COLUMN parallelism")
        migrations.set_version(connection, "0010")
    engine.dispose()
    store = JobStore(JobStore.sqlite_url(old))
    assert store.access.tokens() == []
    store.close()
    assert _tables(old / "jobs.db") == new
