"""Files that are compressed as a whole give Spark's rows of the text, or an error that names them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from firesteel.common.error_report import summary_of
from firesteel.common.file_parts import COMPRESSED
from firesteel.connectors import FileSource
from firesteel.errors import FiresteelError
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from tests.integration.file_splits import read_split, split_of
from tests.integration.test_file_source import read, reader

TEXTS = {
    "csv": 'n,s\n1,a\n2,"b, c"\n3,é\n',
    "json": '{"n":1,"s":"a"}\n{"n":2,"s":"b, c"}\n{"n":3,"s":"é"}\n',
}
ROWS = [{"n": 1, "s": "a"}, {"n": 2, "s": "b, c"}, {"n": 3, "s": "é"}]
SCHEMA = "n LONG, s STRING"
# By which Hadoop writes a file with this end of its name.
CODECS = {
    ".gz": "GzipCodec",
    ".gzip": "GzipCodec",
    ".bz2": "BZip2Codec",
    ".deflate": "DefaultCodec",
    ".snappy": "SnappyCodec",
    ".lz4": "Lz4Codec",
    ".zst": "ZStandardCodec",
    ".zstd": "ZStandardCodec",
}


def by_hadoop(engine: SparkEngine, text: bytes, path: Path) -> Path:
    """The text as Hadoop's codec for the file's name writes it."""
    name = CODECS[path.suffix.lower()]
    if name == "ZStandardCodec":  # needs a native library for writing
        path.write_bytes(pa.compress(text, codec="zstd", asbytes=True))
        return path
    jvm = engine.session._jvm  # type: ignore[attr-defined]
    codec = getattr(jvm.org.apache.hadoop.io.compress, name)()
    codec.setConf(jvm.org.apache.hadoop.conf.Configuration())
    stream = codec.createOutputStream(jvm.java.io.FileOutputStream(str(path)))
    stream.write(text)
    stream.close()
    return path


def by_xz(text: bytes, path: Path) -> None:
    path.write_bytes(lzma.compress(text))


def by_zip(text: bytes, path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x", text)


def by_arrow(codec: str) -> Callable[[bytes, Path], None]:
    def write(text: bytes, path: Path) -> None:
        path.write_bytes(pa.compress(text, codec=codec, asbytes=True))

    return write


# The end of a name, what writes the file, and what the error says.
OTHERS: list[tuple[str, Callable[[bytes, Path], object], str]] = [
    (".xz", by_xz, "compressed with xz"),
    (".zip", by_zip, "compressed with zip"),
    (".br", by_arrow("brotli"), "compressed with Brotli"),
    (".lzma", lambda t, p: p.write_bytes(lzma.compress(t, lzma.FORMAT_ALONE)), "with LZMA"),
    (".lzo", lambda t, p: p.write_bytes(b"\x89LZO\x00\r\n\x1a\n" + t), "with LZO"),
    (".7z", lambda t, p: p.write_bytes(b"7z\xbc\xaf\x27\x1c" + t), "with 7z"),
    (".lz4", by_arrow("lz4"), "not have the format of Hadoop's Lz4Codec"),
    (".snappy", by_arrow("snappy"), "not have the format of Hadoop's SnappyCodec"),
    ("", by_xz, "compressed with xz"),
    ("", lambda t, p: p.write_bytes(gzip.compress(t)), "compressed with gzip"),
    ("", lambda t, p: p.write_bytes(bz2.compress(t)), "compressed with bzip2"),
    ("", by_arrow("zstd"), "compressed with Zstandard"),
    ("", by_arrow("lz4"), "compressed with LZ4"),
]


def rows_or_error(harness: OperatorHarness, path: Path) -> list[int] | str:
    before, number = len(harness.batches), harness.operator._splits.received  # type: ignore[attr-defined]
    try:
        read_split(harness, number, split_of(path))
    except Exception as error:
        return summary_of(error)
    return [n for batch in harness.batches[before:] for n in batch["n"].to_pylist()]


def options(format: str) -> dict[str, Any]:
    return {"header": True} if format == "csv" else {}


ENDS = (*COMPRESSED, ".GZ", ".Snappy")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [f"x.{format}{end}" for format in TEXTS for end in ENDS])
def test_what_spark_decompresses_has_its_rows(
    engine: SparkEngine, tmp_path: Path, name: str
) -> None:
    format = name.split(".")[1]
    path = by_hadoop(engine, TEXTS[format].encode(), tmp_path / name)
    for schema in (SCHEMA, None):
        source = FileSource(str(path), format=format, schema=schema, **options(format))
        assert read(reader(engine, source), path) == ROWS
        anew = reader(engine, source, lambda df: df.where("rand() < 2"))
        assert read(anew, path) == ROWS


@pytest.mark.parametrize("end", ENDS)
def test_the_header_of_a_compressed_file_is_checked(
    engine: SparkEngine, tmp_path: Path, end: str
) -> None:
    path = by_hadoop(engine, b"s,n\na,1\n", tmp_path / f"x.csv{end}")
    harness = reader(engine, FileSource(str(path), format="csv", schema=SCHEMA, header=True))
    with pytest.raises(FiresteelError, match=f"{re.escape(str(path))}: 'n', column 1 of the sche"):
        read(harness, path)


@pytest.mark.parametrize(
    ("end", "write", "reason"), OTHERS, ids=[f"{reason} {end}" for end, _, reason in OTHERS]
)
def test_what_spark_would_take_for_text_is_refused(
    engine: SparkEngine,
    tmp_path: Path,
    end: str,
    write: Callable[[bytes, Path], object],
    reason: str,
) -> None:
    for format, text in TEXTS.items():
        path = tmp_path / f"x y.{format}{end}"
        write(text.encode(), path)
        for message in (f"{re.escape(str(path))}: .*{reason}", r"\.gz\b"):
            with pytest.raises(
                FiresteelError, match=message
            ):  # before a schema of nonsense is found
                reader(engine, FileSource(str(tmp_path), format=format, **options(format)))
            source = FileSource(str(path), format=format, schema=SCHEMA, **options(format))
            with pytest.raises(FiresteelError, match=message):
                read(reader(engine, source), path)
        path.unlink()


def test_lines_and_documents_of_any_format_are_refused(engine: SparkEngine, tmp_path: Path) -> None:
    path = tmp_path / "x.xz"
    by_xz(b"<all><row><n>1</n></row></all>", path)
    for format, given in (
        ("text", {}),
        ("text", {"wholetext": True}),
        ("json", {"multiLine": True}),
        ("xml", {"rowTag": "row"}),
    ):
        schema = "value STRING" if format == "text" else "n LONG"
        source = FileSource(str(path), format=format, schema=schema, **given)
        with pytest.raises(FiresteelError, match=f"{path}: the file is compressed with xz"):
            read(reader(engine, source), path)
    (found,) = read(reader(engine, FileSource(str(path), format="binaryFile")), path)
    assert found["content"] == path.read_bytes(), "its bytes are what is asked for"


def test_text_with_such_a_name_is_read(engine: SparkEngine, tmp_path: Path) -> None:
    paths = [tmp_path / f"x.csv{end}" for end in (".xz", ".zip", ".br", ".lzo", ".7z")]
    for path in paths:
        path.write_text(TEXTS["csv"])
    for schema in (SCHEMA, None):
        source = FileSource(*map(str, paths), format="csv", schema=schema, header=True)
        assert read(reader(engine, source), *paths) == ROWS * len(paths)


def test_a_file_that_spark_leaves_out_is_not_looked_at(engine: SparkEngine, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(TEXTS["csv"])
    (tmp_path / "y.csv").write_text("s,n\n")
    by_xz(b"n,s\n", tmp_path / "x.csv.xz")
    for glob, refused in (("*x.csv", ""), ("x.*", "x.csv.xz"), ("y.*", "y.csv")):
        source = FileSource(
            str(tmp_path), format="csv", schema=SCHEMA, header=True, pathGlobFilter=glob
        )
        files = [tmp_path / name for name in ("x.csv", "x.csv.xz", "y.csv")]
        if refused:
            with pytest.raises(FiresteelError, match=f"^{tmp_path / refused}: "):
                read(reader(engine, source), *files)
        else:
            assert read(reader(engine, source), *files) == ROWS
    inferred = FileSource(str(tmp_path), format="csv", header=True, pathGlobFilter="x.csv")
    assert [row["s"] for row in read(reader(engine, inferred), tmp_path / "x.csv")] == [
        row["s"] for row in ROWS
    ]


@pytest.mark.parametrize("end", [".gz", ".bz2", ".deflate", ".snappy", ".lz4", ".zst"])
def test_a_compressed_file_that_was_cut_off_is_named(
    engine: SparkEngine, tmp_path: Path, end: str
) -> None:
    """Also two files in one, the second of which was cut off. Never are there fewer rows."""
    text = "".join(f"{n},{'s' * (n % 7)}\n" for n in range(20))
    whole = by_hadoop(engine, text.encode(), tmp_path / f"whole.csv{end}").read_bytes()
    second = len(whole)
    twice = whole * 2
    cuts = {1, 5, 9, second // 2, second - 9, second - 1, len(twice) - 9, len(twice) - 1}
    cuts |= {second + more for more in (0, 1, 4, 9, 12, second // 2)}
    path = tmp_path / f"cut.csv{end}"
    path.touch()
    harness = reader(engine, FileSource(str(path), format="csv", schema=SCHEMA))
    for size in sorted(cuts):
        path.write_bytes(twice[:size])
        rows = list(range(20)) * (1 if size <= second else 2)
        found = rows_or_error(harness, path)
        assert found == rows or (isinstance(found, str) and str(path) in found), size


@pytest.mark.parametrize("end", [".snappy", ".lz4"])
def test_blocks_of_any_size_are_read(engine: SparkEngine, tmp_path: Path, end: str) -> None:
    """A large text has several chunks in one block; files one after the other are one file."""
    texts = ["".join(f"{n},{n}\n" for n in range(count)) for count in (100_000, 0, 3)]
    path = tmp_path / f"x.csv{end}"
    source = FileSource(str(path), format="csv", schema="n LONG, s STRING")
    for count, text in ((100_000, texts[0]), (0, texts[1]), (3, texts[2])):
        by_hadoop(engine, text.encode(), path)
        assert len(read(reader(engine, source), path)) == count
    joined = tmp_path / f"joined.csv{end}"
    with joined.open("wb") as out:
        for text in (texts[2], texts[0]):
            out.write(by_hadoop(engine, text.encode(), path).read_bytes())
    assert len(read(reader(engine, source), joined)) == 100_003
    damaged = bytearray(joined.read_bytes())
    damaged[-2000:] = bytes(2000)
    joined.write_bytes(damaged)
    with pytest.raises(
        FiresteelError, match=f"{joined}: the file does not have the format of Hadoop's"
    ):
        read(reader(engine, source), joined)
    ignoring = FileSource(str(joined), format="csv", schema=SCHEMA, ignoreCorruptFiles=True)
    assert len(read(reader(engine, ignoring), joined)) < 100_003
