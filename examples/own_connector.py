"""A custom source and a custom sink: rows of a SQLite table, and gzipped JSON lines.

    firesteel run examples/own_connector.py [--data DIR]

They need not be in the job's file: a module beside it does as well, which travels with the job, or
one that is installed on the cluster.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from firesteel import Environment
from firesteel.connectors import (
    Committer,
    EndOfSplit,
    Sink,
    SinkWriter,
    Source,
    SourceReader,
    Split,
)
from firesteel.operator import RuntimeContext

# -- the source: ranges of row ids are its splits


@dataclass(frozen=True)
class SqliteSource(Source):
    """Reads a table, `batch_rows` rows at a time."""

    path: str
    table: str
    schema: str  # of the columns to read, as DDL
    batch_rows: int = 1000

    def resolved(self) -> SqliteSource:
        return replace(self, path=os.path.abspath(self.path))

    def output_schema(self) -> str:
        return self.schema

    def splits(self, parallelism: int) -> list[Split]:
        with closing(sqlite3.connect(self.path)) as database:
            query = f"SELECT coalesce(max(rowid), 0) FROM {self.table}"
            (last,) = database.execute(query).fetchone()
        rows = max(1, -(-last // (4 * parallelism)))
        return [{"after": first, "to": min(first + rows, last)} for first in range(0, last, rows)]

    def create_reader(self, context: RuntimeContext) -> SqliteReader:
        assert context.output_schema is not None
        return SqliteReader(self, context.output_schema)


class SqliteReader(SourceReader):
    def __init__(self, source: SqliteSource, schema: pa.Schema) -> None:
        self._source = source
        self._schema = schema
        self._after = self._to = 0
        self._query = (
            f"SELECT rowid, {', '.join(schema.names)} FROM {source.table} "
            "WHERE rowid > ? AND rowid <= ? ORDER BY rowid LIMIT ?"
        )

    def open(self) -> None:
        self._database = sqlite3.connect(self._source.path)

    def begin(self, split: Split) -> None:
        self._after, self._to = split["after"], split["to"]

    def poll(self) -> pa.RecordBatch:
        arguments = (self._after, self._to, self._source.batch_rows)
        rows = self._database.execute(self._query, arguments).fetchall()
        if not rows:
            raise EndOfSplit
        self._after = rows[-1][0]
        columns = list(zip(*rows, strict=True))[1:]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, self._schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def position(self) -> int:
        return self._after

    def restore(self, position: int) -> None:
        self._after = position

    def close(self) -> None:
        self._database.close()


# -- the sink: a file is committed by giving it its name


@dataclass(frozen=True)
class GzipSink(Sink):
    """One file of JSON lines per subtask and commit."""

    folder: str

    def resolved(self) -> GzipSink:
        return replace(self, folder=os.path.abspath(self.folder))

    def create_writer(self, context: RuntimeContext) -> GzipWriter:
        return GzipWriter(Path(self.folder), context)

    def create_committer(self, context: RuntimeContext) -> GzipCommitter:
        return GzipCommitter(Path(self.folder), context)


class GzipWriter(SinkWriter):
    def __init__(self, folder: Path, context: RuntimeContext) -> None:
        self._folder = folder
        self._subtask = context.task.subtask
        self._attempt_id = context.task.attempt_id
        self._count = 0
        self._file: gzip.GzipFile | None = None

    def open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def write(self, batch: pa.RecordBatch) -> None:
        if self._file is None:
            self._path = self._folder / f".{self._attempt_id}-{self._count}"
            self._file = gzip.GzipFile(self._path, "wb")
        for row in batch.to_pylist():
            self._file.write(json.dumps(row).encode() + b"\n")

    def prepare(self) -> list[tuple[Path, Path]]:
        if self._file is None:
            return []
        self._file.close()
        self._file = None
        self._count += 1
        final = self._folder / f"{self._subtask}-{self._count}.jsonl.gz"
        return [(self._path, final)]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._path.unlink()


class GzipCommitter(Committer):
    def __init__(self, folder: Path, context: RuntimeContext) -> None:
        self._folder = folder
        self._subtask = context.task.subtask

    def start_over(self) -> None:
        for path in self._folder.glob(f"{self._subtask}-*.jsonl.gz"):
            path.unlink()

    def commit(self, committables: Sequence[tuple[Path, Path]]) -> None:
        for path, final in committables:
            if path.exists():  # else it was committed before
                path.rename(final)

    def abort(self, committables: Sequence[tuple[Path, Path]]) -> None:
        for path, _ in committables:
            path.unlink(missing_ok=True)


# -- a program with both


def create_table(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE stock (article TEXT, quantity INTEGER)")
        rows = [(("steel", "flint", "tinder")[n % 3], n) for n in range(10_000)]
        database.executemany("INSERT INTO stock VALUES (?, ?)", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data/own_connector"))
    data: Path = parser.parse_args().data
    if not (data / "stock.db").exists():
        create_table(data / "stock.db")
    env = Environment(parallelism=2)
    stock = env.from_source(
        SqliteSource(str(data / "stock.db"), "stock", "article STRING, quantity LONG")
    )
    odd = stock.transform(lambda df: df.where("quantity % 2 = 1"))
    odd.sink_to(GzipSink(str(data / "odd")))
    env.execute("own connector")


if __name__ == "__main__":
    main()
