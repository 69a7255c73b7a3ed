"""Regular CSV text gives the columns that Arrow's parser gives of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taskexecutor.executor.columnar.cached_plans.wanted_rows import Bounds, WantedRows
from taskexecutor.executor.columnar.readers import csv_columns, csv_regular
from taskexecutor.executor.columnar.readers.csv_columns import CsvFormat, Lines
from taskexecutor.executor.columnar.readers.csv_regular import RegularText
from taskexecutor.executor.columnar.readers.pieces import Differs, Wanted, bytes_of
from tests.long import fewer

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("b", pa.int8()),
        ("t", pa.timestamp("us", "UTC")),
        ("l", pa.timestamp("us")),
        ("s", pa.string()),
        ("d", pa.float64()),
        ("x", pa.string()),
        ("i", pa.int32()),
    ]
)
READ = [name for name in SCHEMA.names if name != "x"]  # a column that is only passed over

_digits = st.text("0123456789", min_size=1, max_size=19)
_fraction = st.sampled_from(["", ".5", ".123", ".123456", ".1234567", ",5", "Z", "."])
_date = st.sampled_from(
    ["2024-02-29", "2023-02-29", "1969-12-31", "0001-01-01", "9999-12-31", "2024-1-01"]
)
_clock = st.sampled_from(["00:00:00", "23:59:59", "24:00:00", "12:60:00", "12:00:60", "1a:00:00"])
_time = st.builds("{}{}{}{}".format, _date, st.sampled_from([" ", "T", "x"]), _clock, _fraction)
_usual_time = st.builds("2024-02-29 {:02}:{:02}:07.{:03}".format, *[st.integers(0, 23)] * 3)
_text = st.text(st.sampled_from([*"ab \t\\'é\x7f"]), max_size=20)
_values: dict[str, st.SearchStrategy[str]] = {
    "n": _digits | st.integers().map(str),
    "b": st.integers(0, 130).map(str),
    "t": _time,
    "l": _time,
    "s": _text,
    "d": st.floats(allow_nan=False).map(repr),
    "x": _text,
    "i": st.integers(0, 2**31).map(str),
}
_usual = _values | {
    "n": st.integers(0, 10**16 - 1).map(str),
    "b": st.integers(0, 127).map(str),
    "t": _usual_time,
    "l": _usual_time,
    "i": st.integers(0, 2**31 - 1).map(str),
}


def _lines(values: dict[str, st.SearchStrategy[str]]) -> st.SearchStrategy[list[list[str]]]:
    line = st.tuples(*values.values()).map(list)
    return st.lists(line, min_size=1, max_size=30)


@settings(max_examples=fewer(150))
@given(
    _lines(_usual) | _lines(_values),
    st.integers(1, 4),
    st.integers(0, 50),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
)
@example([["1", "2", "2024-01-01 00:00:00", "2024-01-01 00:00:00", "", "1", "", "4"]], 1, 0, "\n")
def test_columns_are_those_that_arrow_parses(
    rows: list[list[str]], times: int, before: int, newline: str
) -> None:
    text = "".join((",".join(row) + newline) * times for row in rows).encode()
    lines = Lines(b"x" * before + text, before, before + len(text))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(csv_regular, "_CACHED", 64)
        found = _columns(lines)
        patched.setattr(csv_regular, "_LATE_ROWS", 1)
        assert found == _columns(lines, late={"s", "n"})
        if found is not None:
            rows = Less(5)
            chosen = rows.chosen(found)
            few = found if chosen is None else found.take(pa.array(chosen))
            assert few == _columns(lines, late={"s"}, rows=rows)
        patched.setattr(csv_columns.RegularText, "of", lambda *_: None)
        assert found == _columns(lines)


def test_text_that_is_regular_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CsvFormat, "_split", None)
    row = b"123456789012,7,2024-02-29 23:59:59.999,2024-02-29 23:59:59.999,a text,1,,5\n"
    lines = Lines(row * 1000, 0, len(row) * 1000)
    found = _columns(lines)
    assert isinstance(found, pa.Table)
    assert found.num_rows == 1000
    assert found.slice(999).to_pylist() == found.slice(0, 1).to_pylist()
    assert found["n"][0].as_py() == 123456789012


@pytest.mark.parametrize(
    "text",
    [
        "a,b\nc\n",
        "a,b\n,c,d\n",
        "a,b,c\nd\n",
        "a\nb,c,d\n",
        "a,b\n\n",
        "a,b\nc,d",
        "a,b\r\n",
        "a\nb\n",
        "",
    ],
)
def test_other_text_is_not_regular(text: str) -> None:
    assert RegularText.of(text.encode(), 0, len(text), ",", 2) is None


def test_lines_that_are_not_wanted_are_not_converted() -> None:
    time = "2024-02-29 23:59:59"
    good, bad = (f"{n},{b},{time},{time},a,1,,5\n" for n, b in ((1, "7"), (9, "no")))
    text = (good + 3 * bad).encode()
    lines = Lines(text, 0, len(text))
    assert _columns(lines) is None
    found = _columns(lines, rows=Less(5))
    assert found is not None
    assert found["b"].to_pylist() == [7]


def test_late_texts_are_in_the_text_until_they_are_taken() -> None:
    text = b"".join(b"%d,text %d\n" % (n, n) if n % 9 else b"%d,\n" % n for n in range(5000))
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    format = CsvFormat.of(schema, {}, "UTC")
    table = format.rows(Lines(text, 0, len(text)), Wanted(["s"], late=["s"]), first=False).table
    late = table.column("s").chunk(0)
    assert late.dictionary.buffers()[2].size >= len(text)
    assert bytes_of(table.slice(0, 2500)) < bytes_of(table) < 4 * len(text)
    assert late.slice(8, 2).dictionary_decode().to_pylist() == ["text 8", None]


def test_rows_count_if_only_columns_of_the_path_are_wanted() -> None:
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    lines = Lines(b"1,a\n2,b\n", 0, 8)
    rows = CsvFormat.of(schema, {}, "UTC").rows(lines, Wanted(["day"]), first=False)
    assert rows.table.num_rows == 2


class Less(WantedRows):
    """Than a number."""

    columns = frozenset({"n"})

    def __init__(self, than: int) -> None:
        self._than = than

    def may_be(self, bounds: Mapping[str, Bounds]) -> bool:
        return True

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        return pc.less(table["n"], self._than)


def _columns(
    lines: Lines, late: Collection[str] = (), rows: WantedRows | None = None
) -> pa.Table | None:
    wanted = Wanted(READ, rows, late)
    try:
        table = CsvFormat.of(SCHEMA, {}, "UTC").rows(lines, wanted, first=False).table
    except Differs:
        return None
    return table.cast(pa.schema([field for field in SCHEMA if field.name in READ]))
