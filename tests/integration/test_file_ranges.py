"""Ranges of files, and files that change, on a real Spark."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as pa_orc
import pyarrow.parquet as pq
import pytest

from firesteel.common.error_report import summary_of
from firesteel.connectors import FileSource
from firesteel.errors import FiresteelError
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.readers.parts import check_header, check_read, unchanged
from tests.integration.file_splits import cut_split, parts_of, read_split, split_of
from tests.integration.test_file_source import reader

NUMBERS = "n LONG, s STRING"


def deliver(harness: OperatorHarness, *splits: str) -> list[list[dict[str, Any]]]:
    """The rows of each of the splits."""
    found = []
    for number, split in enumerate(splits):
        before = len(harness.batches)
        read_split(harness, number, split)
        found.append([row for batch in harness.batches[before:] for row in batch.to_pylist()])
    return found


def written(folder: Path, name: str) -> tuple[Path, FileSource]:
    """An odd file."""
    format, _, kind = name.partition(" ")
    path = folder / f"x.{format}"
    options: dict[str, Any] = {}
    schema = NUMBERS
    table = pa.table({"n": [1, None, 3], "s": ["é", "", None]})
    match name:
        case "csv":
            path.write_bytes(b'1,a\n\n2,"b, c"\n\xc3\xa9,bad\n3\n4,"x""y"\n5,last')
        case "csv header":
            options = {"header": True}
            path.write_bytes(b'n,s\r\n1,a\r\n2,"b"\r\n\r\n3,\xf0\x9f\x98\x80\r\n')
        case "csv quoted":  # which Spark reads line by line
            path.write_bytes(b'1,"a\n2,b"\n3,"c\r4,d"\n"5,e\n')
        case "csv separated":
            options = {"lineSep": ";", "sep": "|"}
            path.write_bytes(b"1|a;2|b\nc;3|d")
        case "json":
            path.write_bytes(
                b'{"n": 1, "s": "a"}\n\n{"s": "\\n"}\r\n{nonsense\n{"n": 3, "s": "\xc3\xa9"}'
            )
        case "text":
            schema = "value STRING"
            path.write_bytes(b"\none\r\ntwo\rthree\n\n\xc3\xa9\n")
        case "parquet":
            pq.write_table(
                table,
                path,
                row_group_size=1,
                compression="none",
                use_dictionary=False,
                write_statistics=False,
                store_schema=False,
            )
        case "orc":
            pa_orc.write_table(table, path, stripe_size=1, batch_size=1)
            assert pa_orc.ORCFile(path).nstripes > 1
    assert kind or format
    return path, FileSource(str(path), format=format, schema=schema, **options)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "name",
    ["csv", "csv header", "csv quoted", "csv separated", "json", "text", "parquet", "orc"],
)
def test_a_file_cut_anywhere_has_the_rows_that_spark_reads(
    engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path, source = written(tmp_path, name)
    assert source.can_be_cut
    options = source.options
    expected = (
        engine.session.read.schema(source.schema)  # type: ignore[arg-type]
        .format(source.format)
        .options(**options)
        .load(str(path))
        .toArrow()
        .to_pylist()
    )
    size = path.stat().st_size
    kept = reader(engine, source, lambda df: df.where("length(cast(struct(*) AS STRING)) > 0"))
    cuts = [cut_split(path, at) for at in range(1, size)]
    for at, rows in enumerate(deliver(kept, split_of(path), *cuts)):
        assert rows == expected, at
    several = [cut_split(path, *range(7, size, 3))]
    assert deliver(reader(engine, source), *several) == [expected]
    by_both = name in ("csv", "csv quoted")  # Spark and Arrow
    assert kept.metrics.plan_counts.made == (2 if by_both else 1)
    assert kept.metrics.counters["numRecordsIn"].value == len(expected) * (1 + len(cuts))
    if name in ("csv header", "parquet"):
        anew = reader(engine, source, lambda df: df.where("current_timestamp() IS NOT NULL"))
        monkeypatch.setattr(engine, "cores", 2)  # a job has two partitions then
        assert deliver(anew, cut_split(path, size // 2)) == [expected]
        assert anew.metrics.counters["numRecordsIn"].value == len(expected)


def test_a_file_that_is_not_what_was_listed_is_named(engine: SparkEngine, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("1,a\n2,b\n")
    harness = reader(engine, FileSource(str(path), format="csv", schema=NUMBERS))
    whole, cut = split_of(path), cut_split(path, 4)
    parts = parts_of(path)
    path.write_text("1,a\n2,b\n3,c\n")
    assert len(deliver(harness, whole)[0]) == 3, "a whole file is read as it is"
    with pytest.raises(FiresteelError, match=rf"{path}: the file now has 12 bytes; it had 8"):
        check(harness, cut)
    path.write_text("1,a\n")
    with pytest.raises(FiresteelError, match=rf"{path}: the file now has 4 bytes; it had 8"):
        check(harness, whole)
    path.write_text("2,b\n3,c\n")
    os.utime(path, ns=(0, parts[0].modified_ns + 1))
    for split in (whole, cut):
        with pytest.raises(FiresteelError, match=rf"{path}: the file was written to"):
            check(harness, split)
    path.unlink()
    for split in (whole, cut):
        with pytest.raises(FiresteelError, match=rf"{path}: the file is gone; it had 8 bytes"):
            check(harness, split)


@pytest.mark.parametrize("format", ["parquet", "orc", "binaryFile"])
def test_no_other_file_is_read_in_the_place_of_one_that_was_listed(
    engine: SparkEngine, tmp_path: Path, format: str
) -> None:
    path, other = tmp_path / "x", tmp_path / "other"
    write = pa_orc.write_table if format == "orc" else pq.write_table
    write(pa.table({"n": [1, 2, 3]}), path)
    write(pa.table({"n": list(range(1000))}), other)
    split, size = split_of(path), path.stat().st_size
    schema = None if format == "binaryFile" else "n LONG"
    harness = reader(engine, FileSource(str(path), format=format, schema=schema))
    assert deliver(harness, split)[0]
    os.replace(other, path)
    larger = f"{path}: the file now has {path.stat().st_size} bytes; it had {size} bytes when it was listed"
    with pytest.raises(FiresteelError, match=larger):
        check(harness, split)


def check(harness: OperatorHarness, split: str) -> None:
    number = harness.operator._splits.received  # type: ignore[attr-defined]
    read_split(harness, number, split)


def test_a_file_may_only_grow_by_lines_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("1\n")
    lines = [FileSource(str(path), format=format) for format in ("csv", "json", "TEXT")]
    lines.append(FileSource(str(path), format="csv", multiLine=True))
    rows = [
        *(FileSource(str(path), format=format) for format in ("parquet", "orc", "binaryFile")),
        FileSource(str(path), format="xml", rowTag="row"),
        FileSource(str(path), format="text", WHOLETEXT=True),
        FileSource(str(path), format="json", multiLine="TRUE"),
    ]
    (part,) = parts_of(path)
    for source in lines + rows:
        assert unchanged(part, source) == part
        check_read(part, source)
    path.write_text("1\n2\n")
    (grown,) = parts_of(path)
    for source in lines:
        assert unchanged(part, source) == grown
        check_read(part, source)
    for source, listed in [
        *((source, part) for source in rows),
        (lines[0], part._replace(start=1, length=1)),
    ]:
        with pytest.raises(FiresteelError, match="the file now has 4 bytes; it had 2 bytes when"):
            unchanged(listed, source)
        with pytest.raises(
            FiresteelError, match="was changed while it was read: from 2 to 4 bytes"
        ):
            check_read(listed, source)
    packed = path.rename(tmp_path / "x.GZ")
    with pytest.raises(FiresteelError, match=f"{packed}: the file now has 4 bytes"):
        unchanged(part._replace(path=str(packed)), lines[0])
    packed.rename(path)
    path.write_text("1")
    os.utime(path, ns=(0, part.modified_ns))
    for source in lines + rows:
        with pytest.raises(FiresteelError, match="from 2 to 1 bytes"):
            check_read(part, source)
        with pytest.raises(FiresteelError, match="now has 1 bytes; it had 2"):
            unchanged(part, source)
    path.write_text("2\n")
    os.utime(path, ns=(0, part.modified_ns - 1))
    for source in lines + rows:
        with pytest.raises(FiresteelError, match="the file was written to; it had 2 bytes"):
            unchanged(part, source)
        with pytest.raises(FiresteelError, match="was changed while it was read: from 2 to 2"):
            check_read(part, source)
    path.unlink()
    check_read(part, rows[0])
    ignoring = FileSource(str(path), format="csv", ignoreMissingFiles=True)
    assert unchanged(part, ignoring) == part


def test_a_csv_file_with_its_columns_in_other_places_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"

    def beginning(path: str, size: int) -> bytes:
        return Path(path).read_bytes()[:size]

    def refused(header: str, schema: str | None, names: list[str], **options: Any) -> bool:
        path.write_text(f"{header}\n1,2\n")
        source = FileSource(str(path), format="csv", schema=schema, header=True, **options)
        try:
            check_header(str(path), source, names, beginning)
        except FiresteelError as error:
            return str(error).startswith(f"{path}: ")
        return False

    names = ["a", "b"]
    assert refused("b,a", "a INT, b INT", names)
    assert refused("a,new,b", "a INT, b INT", names)
    assert refused("a,c", None, names), "it was inferred from other files"
    assert refused("b::a", "a INT, b INT", names, sep="::")
    assert refused('"b"\ta', "a INT, b INT", names, sep="\\t")
    assert refused("\n#x\n'b';a", "a INT, b INT", names, sep=";", quote="'", comment="#")
    for header, schema, options in (
        ("A, b", "a INT, b INT", {}),
        ("a,b,c", "a INT, b INT", {}),
        ("x,y", "a INT, b INT", {}),
        ("a", "a INT, b INT", {}),
        ("b,a", "a INT, b INT", {"enforceSchema": True}),
        ("a,a", None, {}),
        ('b,"a', "a INT, b INT", {"multiLine": True}),
        ('"b"::a', "a INT, b INT", {"sep": "::"}),
    ):
        assert not refused(header, schema, names, **options), header
    path.write_text("")
    source = FileSource(str(path), format="csv", header=True)
    check_header(str(path), source, names, beginning)


ODD_HEADERS = (
    (",a,b", {}),  # as pandas and R write an index
    ('"",a,b', {}),
    ("a,,", {}),
    (" ,a,b", {"ignoreLeadingWhiteSpace": True}),
    ("a,NA,b", {"nullValue": "NA"}),
    ('a,"",b', {"emptyValue": "none"}),
    ("  a, b ,c\t", {}),
    ('" a ","b ",c', {}),
    ('"a ""b""",c,d', {}),
    ('"a ""b""",c,d', {"escape": '"'}),
    ('"a \\"b\\"",c,d', {}),
    ('"a, b",c,d', {}),
    ("a.b,`c`,d e", {}),
    ("É,日本,İ", {}),
    ("a,A,a", {}),
    ("_c1,,_c1", {}),
)


@pytest.mark.parametrize(("header", "options"), ODD_HEADERS, ids=repr)
def test_a_csv_file_has_the_columns_that_spark_infers_from_it(
    engine: SparkEngine, tmp_path: Path, header: str, options: dict[str, Any]
) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"{header}\n1,2,3\n")
    source = FileSource(str(path), format="csv", header=True, **options)
    names = engine.session.read.csv(str(path), header=True, **options).columns
    assert len(names) == 3
    check_header(str(path), source, names, lambda path, size: Path(path).read_bytes()[:size])


@pytest.mark.parametrize(
    ("format", "end", "schema", "options"),
    [
        ("binaryFile", "", None, {}),
        ("text", "", None, {"wholetext": True}),
        ("text", ".gz", None, {}),
        ("text", "", None, {}),
        ("json", "", "n INT", {"multiLine": True}),
        ("csv", ".gz", "n INT", {"header": True}),
        ("xml", "", "n INT", {"rowTag": "r"}),
        ("orc", "", "n INT", {}),
    ],
)
def test_empty_files_have_no_rows_as_in_spark(
    engine: SparkEngine,
    tmp_path: Path,
    format: str,
    end: str,
    schema: str | None,
    options: dict[str, Any],
) -> None:
    path = tmp_path / f"x.{format}{end}"
    path.write_bytes(b"")
    on_spark = engine.session.read.format(format).options(**options)
    if schema is not None:
        on_spark = on_spark.schema(schema)
    assert on_spark.load(str(path)).collect() == []
    source = FileSource(str(path), format=format, schema=schema, **options)
    assert not any(deliver(reader(engine, source), split_of(path)))


def test_a_header_with_equal_names_has_the_names_that_spark_infers(
    engine: SparkEngine, tmp_path: Path
) -> None:
    """Spark renames the second `1` to `11`, and the columns named `11` to `112` and `113`."""
    path = tmp_path / "x.csv"
    path.write_text("1,1,11,11\n5,6,7,8\n")
    inferred = engine.session.read.csv(str(path), header=True, inferSchema=True)
    for schema in (inferred.schema, None):
        source = FileSource(str(path), format="csv", schema=schema, header=True)
        (rows,) = deliver(reader(engine, source), split_of(path))
        assert rows == [row.asDict() for row in inferred.collect()]


def test_odd_files_give_their_rows_or_an_error_that_names_them(
    engine: SparkEngine, tmp_path: Path
) -> None:
    source = FileSource(str(tmp_path), format="csv", schema=NUMBERS)
    lines = reader(engine, source)
    names = ("x.csv", "empty.csv", "x.csv.gz", "x.csv.bz2", "last.csv")
    for name in names:
        with pa.output_stream(tmp_path / name) as stream:  # compressed by its name
            stream.write(b"" if name == "empty.csv" else f"1,{name}\n".encode())
    together = split_of(*(tmp_path / name for name in names))
    (rows,) = deliver(lines, together)
    assert [row["s"] for row in rows] == [name for name in names if name != "empty.csv"]
    anew = reader(engine, source, lambda df: df.where("current_timestamp() IS NOT NULL"))
    assert deliver(anew, together) == [rows]
    assert anew.metrics.plan_counts.made == 1, "one plan for all of them"
    options = FileSource(str(tmp_path), format="csv", schema=NUMBERS, pathGlobFilter="x.*")
    assert deliver(reader(engine, options), together) == [rows[:3]], "Spark leaves files out"
    good = pa.table({"n": [1, 2], "s": ["a", "b"]})
    for name, content in (("good", good), ("fewer", good.select(["s"])), ("brotli", good)):
        codec = "brotli" if name == "brotli" else "snappy"
        pq.write_table(content, tmp_path / f"{name}.parquet", compression=codec)
    whole = (tmp_path / "good.parquet").read_bytes()
    (tmp_path / "truncated.parquet").write_bytes(whole[:-9])
    (tmp_path / "empty.parquet").write_bytes(b"")
    rows_of = reader(engine, FileSource(str(tmp_path), format="parquet", schema=NUMBERS))
    found = deliver(rows_of, split_of(tmp_path / "good.parquet", tmp_path / "fewer.parquet"))
    assert [row["n"] for row in found[0]] == [1, 2, None, None], "as Spark reads a folder"
    assert not any(deliver(rows_of, split_of(tmp_path / "empty.parquet"))), "Spark skips it"
    for name, reason in (
        ("truncated", "is not a Parquet file"),
        ("brotli", "(?i)brotli"),
    ):
        path = tmp_path / f"{name}.parquet"
        with pytest.raises(Exception, match=r"\S") as raised:
            check(rows_of, split_of(path))
        assert str(path) in summary_of(raised.value)
        assert re.search(reason, summary_of(raised.value))
    check(rows_of, split_of(tmp_path / "good.parquet"))
    assert len(rows_of.rows()) == 6, "the cached plan is as good as before"
