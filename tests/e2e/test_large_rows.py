"""Rows of 10 kB to 1 MB, many times more than a slot's heap of 512 MB can hold: from files
through an exchange, into state, a join and files.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from firesteel import Environment
from firesteel.connectors import FileSink, FileSource

from .conftest import Session

FILES = 4
SIZES = {10_000: 1_600, 100_000: 160, 1_000_000: 16}  # of texts, and how many there are per file
KEYS = 7


def written(folder: Path, kind: str) -> FileSource:
    """192 MB of texts; as Parquet, which has each only once, some 5 MB."""
    folder.mkdir()
    number = 0
    for file in range(FILES):
        texts = [chr(97 + n % 26) * size for size, count in SIZES.items() for n in range(count)]
        numbers = range(number, number := number + len(texts))
        rows = pa.table({"id": numbers, "k": [n % KEYS for n in numbers], "text": texts})
        if kind == "csv":
            pc.write_csv(rows, folder / f"{file}.csv")
        else:
            pq.write_table(rows, folder / f"{file}.parquet")
    options = {"header": "true"} if kind == "csv" else {}
    return FileSource(str(folder), format=kind, schema="id long, k long, text string", **options)


@pytest.mark.parametrize(("mode", "kind"), [("streaming", "parquet"), ("batch", "csv")])
def test_large_rows_pass_a_small_heap(
    session: Session, tmp_path: Path, mode: str, kind: str
) -> None:
    env = Environment(mode=mode, parallelism=2)
    rows = env.from_source(written(tmp_path / "rows", kind))
    louder = rows.select_expr("id", "k", "upper(text) AS loud")
    joined = rows.join(louder.drop("k"), on="id", ttl="1 day")
    joined.select_expr("id", "length(text) AS n", "upper(text) = loud AS same").sink_to(
        FileSink(str(tmp_path / "joined"))
    )
    longest = rows.key_by("k").aggregate("count(*) AS n", "max(text) AS text")
    longest.sink_to(FileSink(str(tmp_path / "longest")))
    session.run(env, "large rows")

    total = FILES * sum(SIZES.values())
    found = ds.dataset(tmp_path / "joined", format="parquet").to_table()
    assert sorted(found["id"].to_pylist()) == list(range(total))
    assert set(found["same"].to_pylist()) == {True}
    assert sum(found["n"].to_pylist()) == FILES * sum(n * count for n, count in SIZES.items())
    last = ds.dataset(tmp_path / "longest", format="parquet").to_table()
    of_key = last.group_by("k").aggregate([("n", "max"), ("text", "max")])
    assert sum(of_key["n_max"].to_pylist()) == total
    assert {text[0] for text in of_key["text_max"].to_pylist()} == {"z"}
