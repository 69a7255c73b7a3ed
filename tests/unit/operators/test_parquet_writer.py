"""Part files in Parquet: columns are laid out as their values deserve."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from firesteel.connectors import FileSink
from firesteel.testing import OperatorHarness
from taskexecutor.executor.connectors.files import sink as file_sink
from taskexecutor.executor.connectors.runtime import sink_runtime

ROWS = 20_000
RANDOM = random.Random(1)


def written(folder: Path, *tables: pa.Table, **options: str) -> list[pq.ParquetFile]:
    """The part files that a sink makes of these tables."""
    sink = FileSink(str(folder), options=options)
    operator = sink_runtime(sink).operator()
    harness = OperatorHarness(operator, [tables[0].schema]).open()
    for table in tables:
        for batch in table.combine_chunks().to_batches():
            harness.process(batch)
    harness.end()
    return [pq.ParquetFile(path) for path in sorted(folder.iterdir())]


def layout(file: pq.ParquetFile) -> dict[str, tuple[bool, str]]:
    """By leaf column: whether it has a dictionary, and its compression."""
    group = file.metadata.row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    return {c.path_in_schema: (c.has_dictionary_page, c.compression) for c in columns}


def random_bytes(count: int) -> list[bytes]:
    return [RANDOM.randbytes(40) for _ in range(count)]


def table() -> pa.Table:
    numbers = range(ROWS)
    return pa.table(
        {
            "distinct": pa.array([n * 7919 % 1_000_003 for n in numbers], pa.int64()),
            "repeated": pa.array([n % 50 for n in numbers], pa.int64()),
            "mostly null": pa.array([n if n % 9 == 0 else None for n in numbers], pa.int64()),
            "token": random_bytes(ROWS),
            "name": [f"name {n % 3000}" for n in numbers],
            "nested": [{"token": token} for token in random_bytes(ROWS)],
            "list": [[n % 7, n] for n in numbers],
            "nothing": pa.nulls(ROWS, pa.string()),
            "a.b": pa.array([n * 1.1 for n in numbers]),
            "flag": pa.array([n % 3 == 0 for n in numbers]),
        }
    )


def test_repeated_values_use_dictionaries_and_shrinking_pages_compression(
    tmp_path: Path,
) -> None:
    rows = table()
    (file,) = written(tmp_path / "out", rows)
    assert file.read() == rows
    assert layout(file) == {
        "distinct": (False, "SNAPPY"),
        "repeated": (True, "SNAPPY"),
        "mostly null": (False, "SNAPPY"),
        "token": (False, "UNCOMPRESSED"),
        "name": (True, "SNAPPY"),
        # There is no information about parts of nested columns.
        "nested.token": (True, "SNAPPY"),
        "list.list.element": (True, "SNAPPY"),
        "nothing": (True, "SNAPPY"),
        "a.b": (False, "SNAPPY"),
        "flag": (False, "SNAPPY"),
    }
    usual = tmp_path / "usual.parquet"
    pq.write_table(rows, usual)
    (path,) = (tmp_path / "out").iterdir()
    assert path.stat().st_size < 1.02 * usual.stat().st_size


def test_a_dictionary_is_written_if_it_pays_over_many_rows(
    tmp_path: Path,
) -> None:
    users = np.random.default_rng(1).integers(0, 30_000, 120_000) * 1_000_003
    (file,) = written(tmp_path, pa.table({"user": users}))
    assert layout(file) == {"user": (True, "SNAPPY")}


def test_a_requested_compression_applies_to_all_columns(tmp_path: Path) -> None:
    (file,) = written(tmp_path, pa.table({"token": random_bytes(ROWS)}), compression="zstd")
    assert layout(file) == {"token": (False, "ZSTD")}


def test_few_rows_are_written_as_usual(tmp_path: Path) -> None:
    (file,) = written(tmp_path, pa.table({"token": random_bytes(100)}))
    assert layout(file) == {"token": (True, "SNAPPY")}


def test_rows_that_deserve_another_layout_are_in_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_sink, "GROUP_ROWS", ROWS)
    tokens = random_bytes(ROWS)
    constant = [tokens[0]] * ROWS
    tables = [pa.table({"token": values}) for values in (tokens, tokens, constant, constant)]
    files = written(tmp_path, *tables)
    assert [file.read()["token"].to_pylist() for file in files] == [tokens * 2, constant * 2]
    assert [layout(file)["token"] for file in files] == [(False, "UNCOMPRESSED"), (True, "SNAPPY")]
