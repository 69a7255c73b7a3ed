"""CSV that Arrow reads: the rows are Spark's, whatever is in the files."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from firesteel import Environment, Watermarks
from firesteel.common.task_metrics import Choice
from firesteel.connectors import MALFORMED_TAG, FileSource
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.readers import csv_blocks
from taskexecutor.executor.columnar.readers.csv_columns import converted
from taskexecutor.executor.columnar.readers.pieces import Differs
from taskexecutor.executor.columnar.schemas import from_ddl, to_arrow
from taskexecutor.executor.timing import bundle_time
from tests.integration.file_splits import cut_split
from tests.integration.test_file_ranges import check
from tests.integration.test_file_source import read, reader, source_of
from tests.long import fewer

_NUMBERS = ("0", "7", "-1", "-0", "007", "-08", "127", "-129", "32768", "2147483648", "1.5", "-.5")
_NUMBERS += ("9223372036854775807", "-9223372036854775808", "9223372036854775808", "1.", ".", "-")
_NUMBERS += ("0x1F", "0X1f", "-0x1", "1e5", "1E-5", "1e400", "-1e-400", "4.9e-324", "2.5e-324")
_NUMBERS += ("3.4028236e38", "1e39", "1.17549435e-38", "7.0064923216240853e-46", "0.1", "1_000")
_NUMBERS += (
    "1.00000017881393432617187499",
    "9007199254740993",
    "8.41e+21",
    "2.2250738585072011e-308",
)
_NUMBERS += ("123456789.123456789012345678", "0.000", "99999999.995", "12345678901234567890.12")
_NUMBERS += ("+5", "5d", "5f", "5L", "1e", "e5", "--5", "5-", "1/2", "1..2", "1,5", "٣", "１", "NA")
_WORDS = ("NaN", "nan", "Inf", "-Inf", "Infinity", "+Infinity", "-infinity", "inf", "null", "None")
_WORDS += ("true", "True", "TRUE", "tRuE", "false", "fALSE", "t", "f", "yes", "no", "1", "0", "on")
_DAYS = ("2024-02-29", "2023-02-29", "2024-1-1", "0001-01-01", "0000-01-01", "9999-12-31", "2024")
_DAYS += (
    "12024-01-01",
    "1582-10-10",
    "1969-12-31",
    "2024-13-01",
    "2024-00-10",
    "20240101",
    "-2024-01-01",
)
_CLOCKS = (
    "00:00:00",
    "23:59:59",
    "24:00:00",
    "12:30",
    "12",
    "1:2:3",
    "12:30:60",
    "12:30:59.",
    "123059",
)
_CLOCKS += (
    "12:30:59.1",
    "12:30:59.123456",
    "12:30:59.1234567",
    "12:30:59,5",
    "12:30:59Z",
    "12:30:59z",
)
_CLOCKS += ("12:30:59+02:00", "12:30:59.5-0530", "12:30:59+02", "12:30:59 UTC", "12:30:59.123456Z")
_TIMES = tuple(f"{day}{mark}{clock}" for day in _DAYS for mark in " Tt" for clock in _CLOCKS)
_ODD = (
    " ",
    "a b",
    "\t",
    "\\",
    "\\n",
    "\\N",
    "'",
    "#",
    "é",
    "\u2028",
    "\x0b",
    "\x1f",
    "\x7f",
    "\ufeff",
)
_PIECES = (*"0159+-.eExX TZ:/dDfFnNiI_\t", "٣")
PHASES = [Phase.explicit, Phase.generate]
VALUES = (
    *_NUMBERS, *_WORDS, *_DAYS, *_TIMES, *_ODD, "9" * 33,
    *(f"{blank}{text}" for blank in " \t" for text in ("5", "true", _DAYS[0], "1.5")),
    *(f"{text}{blank}" for blank in " \t" for text in ("5", "true", _DAYS[0], "1.5")),
    *map("".join, product(_PIECES, repeat=2)),
)  # fmt: skip
TYPES = (
    "BYTE",
    "SHORT",
    "INT",
    "LONG",
    "FLOAT",
    "DOUBLE",
    "BOOLEAN",
    "STRING",
    "DATE",
    "TIMESTAMP",
)
TYPES += ("TIMESTAMP_NTZ", "DECIMAL(5,2)", "DECIMAL(18,0)", "DECIMAL(38,10)")


def check_values(engine: SparkEngine, folder: Path, values: list[str]) -> dict[str, int]:
    """How many values of each type Arrow reads."""
    path = folder / "values.csv"
    lines = (f"{i}{f',{value}' * len(TYPES)}\n" for i, value in enumerate(values))
    path.write_text("".join(lines), newline="")
    schema = from_ddl(", ".join(["i LONG", *(f"`{kind}` {kind}" for kind in TYPES)]))
    read = engine.session.read.schema(schema).csv(str(path)).toArrow()
    assert len(read) == len(values)
    counts = dict.fromkeys(TYPES, 0)
    texts = pa.array([value.encode() for value in values])
    for field in to_arrow(schema):
        if field.name == "i":
            continue
        expected = read.column(field.name).combine_chunks()
        for index, value in enumerate(values):
            try:
                found = converted(texts.slice(index, 1), field, utc=True)
            except Differs:
                continue
            counts[field.name] += 1
            # As texts, or NaN and the sign of zero would not count.
            wanted = str(expected.slice(index, 1))
            assert str(found.cast(field.type)) == wanted, (field.name, value)
            assert "null" not in wanted or pa.types.is_string(field.type), (field.name, value)
    return counts


def test_a_value_that_arrow_reads_is_the_one_that_spark_reads(
    engine: SparkEngine, tmp_path: Path
) -> None:
    values = [value for value in VALUES if "," not in value]
    counts = check_values(engine, tmp_path, values)
    for kind, least in zip(
        TYPES, (25, 25, 25, 30, 60, 60, 6, 999, 6, 60, 40, 40, 40, 40), strict=True
    ):
        assert counts[kind] >= least, counts


_any_value = st.one_of(
    st.text("0123456789-.eE+", max_size=25),
    st.text("0123456789", min_size=1, max_size=40),
    st.floats().map(repr),
    st.integers().map(str),
    st.dates().map(str),
    st.datetimes().map(str),
    st.text(st.characters(exclude_characters='\n\r\0,"', exclude_categories=("Cs",)), max_size=5),
    st.sampled_from([value for value in VALUES if "," not in value]),
)


@settings(deadline=None, max_examples=5, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(values=st.lists(_any_value, min_size=100, max_size=400))
def test_random_values_are_read_as_by_spark(
    engine: SparkEngine, tmp_path: Path, values: list[str]
) -> None:
    check_values(engine, tmp_path, list(filter(None, values)))


COLUMNS = "n LONG, s STRING, t TIMESTAMP"


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes blocks so small that a few lines span several, and lines exceed the first read."""
    monkeypatch.setattr(csv_blocks, "_BLOCK_BYTES", 20)
    monkeypatch.setattr(csv_blocks, "_LINE_BYTES", 3)
    monkeypatch.setattr(bundle_time, "MOST_BYTES", 100)
    monkeypatch.setattr(csv_blocks, "_MOST_SKIPPED", 2)


def by_arrow(harness: OperatorHarness) -> int:
    """How many rows Arrow has read."""
    counter = harness.metrics.counters.get("numRecordsReadByArrow")
    return counter.value if counter is not None else 0


def by_spark(harness: OperatorHarness) -> OperatorHarness:
    """Has Spark read all files."""
    harness.operator._readers._readers = {(): None}  # type: ignore[attr-defined]
    return harness


class Both:
    """Two readers of one source; Spark reads all files of the second one."""

    def __init__(
        self, engine: SparkEngine, path: Path, where: str | None = None, **options: Any
    ) -> None:
        self.tags = tags = (MALFORMED_TAG,) if options.get("malformed") == "side_output" else ()
        options = {"schema": COLUMNS, **options}
        self.path = path
        self.own_counters = {"numRecordsReadByArrow"}
        if where is not None:
            self.own_counters.add("numRecordsIn")  # Spark's reader leaves out rows, too
        path.touch()
        self.harnesses = []
        for _ in range(2):
            env = Environment(parallelism=1)
            late = Watermarks.bounded("t", max_out_of_orderness="1 s")
            files = FileSource(str(path), format="csv", **options)
            if where is not None:
                rows = env.from_source(files).transform(lambda df: df.where(where))
            else:
                timed = "t TIME" in options["schema"]
                rows = env.from_source(files, watermarks=late if timed else None)
            rows.print()
            self.harnesses.append(source_of(engine, env, tags))
        by_spark(self.harnesses[1])

    def rows(self, content: bytes, *cuts: int) -> list[dict[str, Any]]:
        """After a check that both read the same of a file with this content."""
        self.path.write_bytes(content)
        size = len(content)
        split = cut_split(self.path, *(sorted({cut for cut in cuts if 0 < cut < size})))
        found = []
        for harness in self.harnesses:
            before = len(harness.rows())
            check(harness, split)
            rows = harness.rows()[before:]
            counters = {
                name: counter.value
                for name, counter in harness.metrics.counters.items()
                if name not in self.own_counters
            }
            times = list(harness.watermarks_us)
            side = [row for tag in self.tags for b in harness.side(tag) for row in b.to_pylist()]
            found.append((rows, counters, times, side))
        assert found[0] == found[1], content
        return found[0][0]

    @property
    def reader(self) -> Choice:
        """Returns the reader as `show --full` names it."""
        choice = self.harnesses[0].metrics.plan_counts.choice
        assert choice is not None
        return choice

    @property
    def by_arrow(self) -> int:
        return by_arrow(self.harnesses[0])


_LINES = st.sampled_from(
    [
        b"1,a,2024-01-01 00:00:00", b"-20,,", b"3,\xc3\xa9\xf0\x9f\x98\x80,2024-01-01T00:00:00.5",
        b",,", b"", b"  ", b"x,bad,", b"1,a", b"1,a,,b", b'4,"b, c",', b'5,"a""b",', b'6,"open,',
        b'7,5",', b"8,\\,", b'9,"",', b"10,\x80,", b"11,\0,", b"\xef\xbb\xbf12,z,", b"#13,c,", b"14;c;",
        b" 15,d,", b"16, e ,", b"17,NA,", b"18,f\rx,", b"19," + b"g" * 50 + b",", b"n,s,t",
    ]
)  # fmt: skip
_ENDS = st.sampled_from([b"\n"] * 6 + [b"\r\n", b"\r"])
_PLAIN = st.sampled_from(
    [b"1,a,2024-01-01 00:00:00\n", b"22,bc,\n", b",,\n", b"\n", b"4,d,\r\n", b'"5","e,",\n']
)
_NASTY = st.lists(st.tuples(_LINES, _ENDS).map(b"".join), max_size=12)


@pytest.mark.one_in(3)
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"header": True, "nullValue": "NA", "malformed": "side_output"},
        {"sep": ";", "malformed": "drop"},
        {"sep": "|", "schema": "s STRING", "header": True},
        {"sep": "\t"},
        {"where": "n > 3 OR s = 'a'"},
        {"where": "n < 3", "malformed": "side_output"},
    ],
    ids=lambda options: ", ".join(options) or "plain",
)
def test_any_file_cut_anywhere_is_read_as_by_spark(
    engine: SparkEngine, tmp_path: Path, options: dict[str, Any]
) -> None:
    both = Both(engine, tmp_path / "x.csv", **options)
    separator = b"," if "schema" in options else options.get("sep", ",").encode()

    if "schema" in options:  # a line that starts like a file, where a block would end
        both.rows(b"s\n1234\n" + b"g" * 50 + b"\n\xef\xbb\xbf12\n\xef\xbb\xbf3\n" + b"4\n" * 20)

    @settings(
        deadline=None,
        max_examples=fewer(30),
        phases=PHASES,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        st.one_of(
            _NASTY, st.lists(_PLAIN, max_size=12), st.lists(st.one_of(_PLAIN, _PLAIN, _LINES))
        ),
        st.sampled_from([b"", b"last", b"\r", b"\n\n", b'"']),
        st.lists(st.integers(1, 200), max_size=4),
    )
    def compare(lines: list[bytes], last: bytes, cuts: list[int]) -> None:
        both.rows((b"".join(lines) + last).replace(b",", separator), *cuts)

    compare()
    assert both.by_arrow


@pytest.mark.usefixtures("small_blocks")
def test_bytes_of_any_kind_are_read_as_by_spark(engine: SparkEngine, tmp_path: Path) -> None:
    both = Both(engine, tmp_path / "x.csv", schema="s STRING, n INT", sep="|")
    pieces = [b"|", b"\n", b"1", b"1|2\n", b"a|3\n", b"\r\n", b" ", b"\r", b'"', b'"b"|4\n']

    @settings(
        deadline=None,
        max_examples=fewer(60),
        phases=PHASES,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(st.sampled_from(pieces)), st.lists(st.integers(1, 60), max_size=3))
    def compare(content: list[bytes], cuts: list[int]) -> None:
        both.rows(b"".join(content), *cuts)

    compare()
    assert both.by_arrow


@pytest.mark.usefixtures("small_blocks")
def test_the_content_decides_who_reads(engine: SparkEngine, tmp_path: Path) -> None:
    both = Both(engine, tmp_path / "x.csv", malformed="drop", header=True, nullValue="NA")

    def by_arrow(content: str) -> tuple[int, int]:
        """How many rows Arrow and Spark read, after the same plain line."""
        before = both.by_arrow
        count = len(both.rows(f"n,s,t\n1,first,2024-01-01 00:00:00\n{content}".encode(), 3, 30))
        return both.by_arrow - before - 1, count - (both.by_arrow - before)

    assert by_arrow("2,a,2024-01-01T00:00:00.5\n") == (1, 0)
    assert by_arrow("2,a,\r\n\r\n3,b,\n") == (2, 0)
    assert by_arrow(",NA,NA\n3,é,") == (2, 0), "nulls, and a last line without an end"
    assert by_arrow('"2","a, b","2024-01-01 00:00:00"\n3,c\\d,\n') == (2, 0)
    assert by_arrow("2," + "a" * 100 + ",\n3,,\n") == (2, 0)
    assert by_arrow("+2,a,\n") == (0, 1)
    assert by_arrow("2,a,2024-01-01\n") == (0, 1)
    assert by_arrow('2,"a\\"b",\n') == (0, 1)
    assert by_arrow('2,"",\n') == (0, 1)
    assert by_arrow("2,a\rb,\n") == (0, 0), "both lines are malformed"
    assert by_arrow("2\n" + "3,b,\n" * 9) == (0, 9), "the rest of the range is Spark's"
    assert both.reader.reads == choose.ARROW_OR_SPARK
    assert re.match(rf"files: {both.path} from byte \d+: .*Expected 3 col", both.reader.reason)


def test_folders_give_columns_and_files_their_names(engine: SparkEngine, tmp_path: Path) -> None:
    """Spark runs a plan that reads the name of the file."""
    folders = ["day=2024-01-02/k=7", "day=2024-01-03/k=__HIVE_DEFAULT_PARTITION__"]
    schema = "s STRING, n DOUBLE, day DATE, k INT"
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.csv").write_text("a,1.5\n,\n")
    files = [tmp_path / folder / "x.csv" for folder in folders]
    source = FileSource(str(tmp_path), format="csv", schema=schema)
    for columns, count in ((["*"], 4), (["k", "n"], 4), (["input_file_name()", "s"], 0)):
        harnesses = [
            reader(engine, source, lambda df, columns=columns: df.selectExpr(*columns))
            for _ in range(2)
        ]
        harnesses[1].operator._readers._readers = {("day", "k"): None}  # type: ignore[attr-defined]
        found = [read(harness, *files) for harness in harnesses]
        assert found[0] == found[1]
        assert len(found[0]) == 4
        assert [by_arrow(harness) for harness in harnesses] == [count, 0]
    assert [row["s"] for row in found[0]] == ["a", None, "a", None]
    assert found[0][0]["input_file_name()"].endswith("/day=2024-01-02/k=7/x.csv")


def test_files_that_arrow_must_not_read(engine: SparkEngine, tmp_path: Path) -> None:
    for name in ("x.csv.gz", "x.csv"):
        with pa.output_stream(tmp_path / name) as stream:  # compressed by its name
            stream.write(b"1,a\n")
    for options, reason in (
        ({"comment": "#"}, "the option comment"),
        ({"mode": "FAILFAST"}, "the option mode is 'FAILFAST'"),
        ({"schema": "n LONG, s BINARY"}, "column 's' is binary"),
        ({"schema": "n LONG, _corrupt_record STRING"}, "malformed rows are returned in a column"),
    ):
        given = {"schema": "n LONG, s STRING", **options}
        harness = reader(engine, FileSource(str(tmp_path), format="csv", **given))
        read(harness, tmp_path / "x.csv")
        choice = harness.metrics.plan_counts.choice
        assert choice == Choice(choose.SPARK, choose.CACHED_PLAN, f"files: {reason}")
        assert by_arrow(harness) == 0
    plain = reader(engine, FileSource(str(tmp_path), format="csv", schema="n LONG, s STRING"))
    assert len(read(plain, tmp_path / "x.csv", tmp_path / "x.csv.gz")) == 2
    assert by_arrow(plain) == 1


def test_malformed_rows_are_found_where_a_condition_drops_them(
    engine: SparkEngine, tmp_path: Path
) -> None:
    path = tmp_path / "x.csv"
    path.write_text("1,1\n9,no\n2,2\n" + "9,9\n" * 9)
    files = FileSource(str(path), format="csv", schema="n INT, m INT", malformed="drop")
    harness = reader(engine, files, lambda df: df.where("n < 5").select("n"))
    assert read(harness, path) == [{"n": 1}, {"n": 2}]
    assert harness.metrics.counters["numMalformedRecordsDropped"].value == 1
