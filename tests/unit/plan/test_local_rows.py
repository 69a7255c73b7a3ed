"""Rows of a program that cannot become a stream, and how tables travel."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pyarrow as pa
import pytest

import firesteel
from firesteel import Environment
from firesteel.connectors.table_source import TableSource
from firesteel.errors import InvalidProgram
from firesteel.program import MAX_INLINE_BYTES


@pytest.mark.parametrize(
    ("rows", "schema", "problem"),
    [
        ([], None, "no rows; pass a schema"),
        ([(None,)], ["n"], "column 'n' contains only nulls"),
        ([{"n": None}, {"n": None}], None, "column 'n' contains only nulls"),
        ([(1,), ([1],)], None, "no schema can be inferred"),
        ([(1,), ("a",)], "n INT", r"row 1, \('a',\)"),
        ([(1,), (None,)], "n INT NOT NULL", r"row 1, \(None,\)"),
        ([(2**40,)], "n INT", "row 0"),
        ([(1, 2)], "n INT", "row 0"),
        ([(1, 2)], ["a", "b", "c"], "3 column names"),
        ([(1, 2)], ["a", "a"], "two columns 'a'"),
        ([(1,)], "n INTT", "does not parse"),
        ([(1,)], 7, "a schema must be a DDL string"),
        ([(1,)], [1], "names of columns, not 1"),
        ("abc", None, "a list of rows, not str"),
        (5, None, "a list of rows, not int"),
        (pd.DataFrame({"n": [1]}), None, r"use from_pandas\(\)"),
        (pa.table({"n": [1]}), None, r"from_arrow\(\)"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows: Any, schema: Any, problem: str) -> None:
    with pytest.raises(InvalidProgram, match=problem):
        Environment().from_collection(rows, schema)


@pytest.mark.parametrize(
    ("columns", "schema", "problem"),
    [
        ({"n": [1], "m": [2]}, "m INT, n INT", "a different order"),
        ({"n": [1]}, "n INT, m INT", "the schema has 2 columns"),
        ({"n": ["x"]}, "n INT", "column 'n' of string cannot be converted to int"),
        ({"n": [1.5]}, "n INT", "column 'n' of double cannot be converted to int"),
        ({"n": pa.array([1], pa.uint64())}, None, "column 'n' is uint64.*pass a schema"),
        ({"n": pa.array([None])}, None, "column 'n' contains only nulls"),
        ({"n": pa.array([None], pa.int32())}, "n INT NOT NULL", "'n' is NOT NULL but has nulls"),
    ],
)
def test_tables_that_do_not_fit_are_refused(columns: Any, schema: Any, problem: str) -> None:
    with pytest.raises(InvalidProgram, match=f"from_arrow.*{problem}"):
        Environment().from_arrow(pa.table(columns), schema)


def test_other_things_are_no_tables() -> None:
    with pytest.raises(InvalidProgram, match=r"takes a pandas.DataFrame, not list"):
        Environment().from_pandas([1])  # type: ignore[arg-type]
    with pytest.raises(InvalidProgram, match=r"takes a pyarrow.Table, .* not list"):
        Environment().from_arrow([1])  # type: ignore[arg-type]
    twice = pd.DataFrame([[1, 2]], columns=["a", "a"])
    with pytest.raises(InvalidProgram, match="two columns 'a'"):
        Environment().from_pandas(twice)


def source_of(stream: Any) -> TableSource:
    source = stream._node.spec.source
    assert isinstance(source, TableSource)
    return source


def test_a_large_table_is_shipped_as_a_file_that_ends_with_the_program() -> None:
    env = Environment()
    small = source_of(env.from_arrow(pa.table({"n": range(100)})))
    assert small.content and not small.file and env._program.files == []
    large = source_of(env.from_arrow(pa.table({"n": range(MAX_INLINE_BYTES)})))
    assert not large.content
    assert large.batches > 1
    (path,) = env._program.files
    assert Path(path).name == large.file
    with pa.ipc.open_file(path) as file:
        assert file.num_record_batches == large.batches
        assert file.read_all()["n"].to_pylist() == list(range(MAX_INLINE_BYTES))
    del env
    import gc

    gc.collect()
    assert not Path(path).exists()


def test_a_position_is_the_batch() -> None:
    class Context:
        config: ClassVar[dict[str, str]] = {}

    source = source_of(Environment().from_collection([(n,) for n in range(64)], "n INT"))
    reader = source.create_reader(Context())  # type: ignore[arg-type]
    reader.open()
    reader.begin({"batch": 3})
    assert reader.position() is False
    batch = reader.poll()
    assert batch is not None and batch["n"].to_pylist() == [12, 13, 14, 15]
    again = source.create_reader(Context())  # type: ignore[arg-type]
    again.open()
    again.begin({"batch": 3})
    again.restore(reader.position())
    with pytest.raises(firesteel.connectors.EndOfSplit):
        again.poll()
    for opened in (reader, again):
        opened.close()


def test_local_times_are_localized_in_the_slot() -> None:
    table = pa.table({"at": [dt.datetime(2024, 7, 1, 12)]})
    assert source_of(Environment().from_arrow(table)).localize
    assert not source_of(Environment().from_arrow(table, "at TIMESTAMP_NTZ")).localize
    ntz = Environment(configuration={"spark.sql.timestampType": "TIMESTAMP_NTZ"})
    assert not source_of(ntz.from_arrow(table)).localize


def test_dir_lists_all_public_names() -> None:
    assert set(firesteel.__all__) <= set(dir(firesteel))
    assert {"connectors", "savepoint", "Tumbling"} <= set(dir(firesteel))
    for name in dir(firesteel):
        getattr(firesteel, name)
