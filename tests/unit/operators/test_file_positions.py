"""Places between tables of files, and progress in splits: the rest is exactly what was not read."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.common.file_parts import FilePart
from firesteel.connectors import FileSource
from firesteel.errors import FiresteelError
from taskexecutor.executor.columnar.cached_plans.wanted_rows import Bounds, WantedRows
from taskexecutor.executor.columnar.readers import csv_blocks, parquet_groups
from taskexecutor.executor.columnar.readers.csv_blocks import CsvBlocks
from taskexecutor.executor.columnar.readers.csv_columns import CsvFormat
from taskexecutor.executor.columnar.readers.parquet_groups import ParquetGroups
from taskexecutor.executor.columnar.readers.pieces import (
    Columns,
    ForSpark,
    PartReader,
    Place,
    Wanted,
)
from taskexecutor.executor.columnar.schemas import to_spark
from taskexecutor.executor.connectors.files.position import SplitProgress
from tests.long import fewer

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


class Plain:
    """No file is compressed, and no path gives columns."""

    def compressed(self, path: str) -> bool:
        return False

    def values(self, path: str) -> Mapping[str, pa.Scalar]:
        return {}


class Limit:
    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes


def csv_reader() -> PartReader:
    return CsvBlocks(CsvFormat.of(SCHEMA, {}, "UTC"), SCHEMA.names, Plain())


def parquet_reader() -> PartReader:
    return ParquetGroups(SCHEMA, SCHEMA.names, Plain(), corrected=True)


def csv_file(path: Path, rows: int, group_rows: int) -> None:
    """Every so often, a line that is Spark's."""
    lines = [
        f'{n},"a""b"\n' if n % (7 * group_rows) == 6 * group_rows else f"{n},{'s' * (n % 9)}\n"
        for n in range(rows)
    ]
    path.write_text("".join(lines))


def parquet_file(path: Path, rows: int, group_rows: int) -> None:
    columns = [pa.array(range(rows), pa.int64()), pa.array(["s" * (n % 9) for n in range(rows)])]
    pq.write_table(pa.table(columns, schema=SCHEMA), path, row_group_size=group_rows)


FORMATS = {"csv": (csv_reader, csv_file), "parquet": (parquet_reader, parquet_file)}


def parts_of(path: Path, cuts: Sequence[int]) -> list[FilePart]:
    found = path.stat()
    bounds = sorted({0, found.st_size, *(cut for cut in cuts if cut < found.st_size)})
    return [
        FilePart(str(path), start, end - start, found.st_size, found.st_mtime_ns)
        for start, end in pairwise(bounds)
    ]


class Sevens(WantedRows):
    """Every seventh number."""

    columns = frozenset({"n"})

    def may_be(self, bounds: Mapping[str, Bounds]) -> bool:
        least, greatest = bounds.get("n", Bounds(0, 0))
        return bool(least <= greatest // 7 * 7)

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        return pc.equal(pc.multiply(pc.divide(table["n"], 7), 7), table["n"])


def behind(
    reader: PartReader,
    parts: Sequence[FilePart],
    place: Place,
    limit_bytes: int,
    rows: WantedRows | None = None,
) -> Iterator[Columns | ForSpark]:
    rest = list(parts[place.part :])
    if place.start:
        first = rest[0]
        end = first.start + first.length
        rest[0] = first._replace(start=place.start, length=end - place.start)
    return reader.pieces(
        rest, Wanted(SCHEMA.names, rows), Limit(limit_bytes), first=place.part, skip=place.rows
    )


def in_order(pieces: Iterable[Columns | ForSpark]) -> list[object]:
    """The numbers that Arrow reads, and the ranges for Spark, each with its first row."""
    found: list[object] = []
    for piece in pieces:
        if isinstance(piece, Columns):
            found += piece.table.column("n").to_pylist()
        else:
            found += [(part.path, part.start, part.length) for part in piece.parts]
            assert not piece.rows
    return found


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=fewer(60), deadline=None)
@given(data=st.data())
def test_tables_resume_at_any_place(format: str, data: st.DataObject) -> None:
    make, write = FORMATS[format]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_blocks, "_BLOCK_BYTES", data.draw(st.integers(20, 200), "block"))
        patch.setattr(csv_blocks, "_MOST_SKIPPED", 2)  # what is looked at is the same again
        patch.setattr(parquet_groups, "_BATCH_ROWS", data.draw(st.integers(1, 20), "batch"))
        parts = []
        for file in range(data.draw(st.integers(1, 3), "files")):
            path = Path(folder, str(file))
            write(
                path, data.draw(st.integers(0, 60), "rows"), data.draw(st.integers(1, 30), "group")
            )
            parts += parts_of(path, data.draw(st.lists(st.integers(1, 2000), max_size=3), "cuts"))
        limits = st.integers(1, 2000)
        rows = data.draw(st.sampled_from([None, Sevens()]), "rows")

        def wanted(pieces: Iterable[Columns | ForSpark]) -> list[object]:
            found = in_order(pieces)
            return [n for n in found if rows is None or not isinstance(n, int) or n % 7 == 0]

        pieces = list(behind(make(), parts, Place(0), data.draw(limits, "limit"), rows))
        whole = wanted(pieces)
        assert whole == wanted(behind(make(), parts, Place(0), data.draw(limits)))
        for number, piece in enumerate(pieces):
            place = piece.end if isinstance(piece, Columns) else Place(piece.numbers[-1] + 1)
            before = wanted(pieces[: number + 1])
            patch.setattr(parquet_groups, "_BATCH_ROWS", data.draw(st.integers(1, 20)))
            rest = wanted(behind(make(), parts, place, data.draw(limits), rows))
            assert before + rest == whole, place


def test_rows_that_are_not_wanted_are_counted(tmp_path: Path) -> None:
    for format, (make, _) in FORMATS.items():
        path = tmp_path / format
        table = pa.table([pa.array(range(30)), pa.array(["s"] * 30)], schema=SCHEMA)
        if format == "parquet":
            pq.write_table(table, path)
        else:
            path.write_text("".join(f"{n},s\n" for n in range(30)))
        (piece,) = behind(make(), parts_of(path, ()), Place(0, 0, 10), 10**6, Sevens())
        assert isinstance(piece, Columns)
        assert (piece.rows, piece.end) == (20, Place(1))
        assert piece.table["n"].to_pylist() == [14, 21, 28]


def test_rows_are_skipped_in_tables_whoever_has_read_them(tmp_path: Path) -> None:
    for format, (make, write) in FORMATS.items():
        path = tmp_path / format
        write(path, 30, 7)
        parts = parts_of(path, ())
        for rows in range(30):
            (first, *_) = behind(make(), parts, Place(0, 0, rows), 10**6)
            if isinstance(first, ForSpark):
                assert (format, first.rows) == ("csv", rows), "the file is one block"
            else:
                assert first.table.column("n").to_pylist() == list(range(rows, 30))
    with pytest.raises(
        FiresteelError, match="parquet: the restored position is past the end by 1 rows"
    ):
        list(behind(parquet_reader(), parts, Place(0, 0, 31), 100))


def progress(path: Path, **options: str) -> SplitProgress:
    source = FileSource(str(path), format="csv", schema="n LONG", **options)
    return SplitProgress(source, to_spark(SCHEMA))


def test_a_position_names_what_has_been_read_of_a_part(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("1\n2\n3\n4\n")
    parts = parts_of(path, (3,))
    first = progress(path)
    first.begin(parts, None)
    assert first.unread() == [(0, parts[0]), (1, parts[1])]
    first.reached(1)
    assert first.position.file is None, "the part has not been started"
    first.reached(1, 3)
    assert first.position.file is None, "nor at its first byte"
    first.reached(1, 5, 1, "x")
    second = progress(path)
    second.begin(parts, json.loads(json.dumps(first.position.to_json())))
    assert second.position == first.position
    assert second.unread() == [(1, parts[1]._replace(start=5, length=3))]
    other = progress(path, multiLine="true")
    with pytest.raises(
        FiresteelError, match="a.csv: .* with different options or a different schema"
    ):
        other.begin(parts, first.position.to_json())
    second.reached(1)
    other.begin(parts, second.position.to_json())  # between two parts
    second.reached(2)
    assert not second.unread() and not second.begins_malformed_pass()


def test_no_position_is_behind_a_file_that_changed_while_it_was_read(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}.csv" for n in range(2)]
    for path in paths:
        path.write_text("1\n2\n")
    reading = progress(tmp_path)
    reading.begin([part for path in paths for part in parts_of(path, ())], None)
    reading.reached(0, 0, 1)
    reading.reached(1)
    paths[0].write_text("1\n")  # has been read
    paths[1].write_text("3\n4\n")
    os.utime(paths[1], ns=(0, 0))
    reading.reached(1, 0, 1)
    with pytest.raises(FiresteelError, match="1.csv: the file was changed while it was read"):
        reading.reached(2)
    assert reading.position.part == 1


def test_parts_with_malformed_rows_are_read_again(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}.csv" for n in range(4)]
    for path in paths:
        path.write_text("1\n")
    parts = [part for path in paths for part in parts_of(path, ())]
    first = progress(tmp_path)
    first.begin(parts, None)
    first.found_malformed([0, 1])
    first.found_malformed([1, 3])
    first.reached(4)
    assert first.begins_malformed_pass()
    assert [number for number, _ in first.unread()] == [0, 1, 3]
    first.reached(1)
    paths[0].unlink()
    paths[2].unlink()
    with pytest.raises(FiresteelError, match="0.csv: the file is gone"):
        progress(tmp_path).begin(parts, json.loads(json.dumps(first.position.to_json())))
    paths[0].write_text("1\n")
    os.utime(paths[0], ns=(0, parts[0].modified_ns))
    paths[3].write_text("1\n2\n")
    with pytest.raises(
        FiresteelError, match="3.csv: the file now has 4 bytes; it had 2 bytes when"
    ):
        progress(tmp_path).begin(parts, json.loads(json.dumps(first.position.to_json())))
    paths[3].write_text("1\n")
    os.utime(paths[3], ns=(0, parts[3].modified_ns))
    second = progress(tmp_path)
    second.begin(parts, json.loads(json.dumps(first.position.to_json())))
    assert [number for number, _ in second.unread()] == [1, 3]
    assert not second.begins_malformed_pass(), "it has been started"
