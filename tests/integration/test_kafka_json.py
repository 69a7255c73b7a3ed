"""JSON and CSV of Kafka's records: Arrow's rows equal Spark's, and unreadable records are found."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firesteel.connectors import KafkaSource
from firesteel.connectors.kafka import Csv, Json
from firesteel.errors import InvalidProgram
from firesteel.operator import RuntimeContext, StreamOperator
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.connectors.kafka.decoders import decoded_schema
from taskexecutor.executor.connectors.kafka.decoders.json_columns import (
    JsonColumns,
    _ends,
    _plain_objects,
)
from taskexecutor.executor.connectors.kafka.decoders.json_regular import RegularReader
from taskexecutor.executor.connectors.kafka.decoders.text import TextValues
from taskexecutor.executor.connectors.kafka.encoders import encoder
from taskexecutor.executor.connectors.kafka.source import KafkaReading
from taskexecutor.executor.connectors.kafka.starting_offsets import check_and_plan
from tests.kafka.broker import Kafka
from tests.kafka.records import Record, create_topic, produce
from tests.kafka_formats import decoded

BID = "auction BIGINT, price INT, channel STRING, rate DOUBLE, dateTime TIMESTAMP, ok BOOLEAN"
WIDE = f"{BID}, day DATE, item STRUCT<id: BIGINT, tags: ARRAY<STRING>>, bids ARRAY<BIGINT>"


@pytest.fixture(scope="module")
def context(engine: SparkEngine) -> RuntimeContext:
    harness = OperatorHarness(StreamOperator(), spark=engine.session)
    harness.open()
    return harness.operator.context


def test_rows_have_the_columns_of_the_schema_and_metadata(context: RuntimeContext) -> None:
    values = [b'{"auction": 1, "channel": "a\\"b", "other": [1]}', None, b'{"price": 2}']
    found = decoded(context, Json("auction BIGINT, channel STRING"), values, metadata=["offset"])
    assert found.rows.to_pylist() == [
        {"auction": 1, "channel": 'a"b', "offset": 100},
        {"auction": None, "channel": None, "offset": 102},
    ]
    assert found.records is not None and found.records.to_pylist() == [0, 2]
    assert found.bad is None


def test_unreadable_json_is_explained(context: RuntimeContext) -> None:
    values = [
        b'{"auction": 1}',
        b'{"auction": "x", "channel": "c"}',
        None,
        b'{"auction": ',
        b" ",
        b'[{"auction": 1}]',
        b'{"auction": 2}',
        b"\xff\xfe",
    ]
    found = decoded(context, Json("auction BIGINT, channel STRING"), values)
    assert [row["auction"] for row in found.rows.to_pylist()] == [1, 2]
    assert found.records is not None and found.records.to_pylist() == [0, 6]
    assert found.bad is not None and found.bad.indices.to_pylist() == [1, 3, 4, 5, 7]
    assert list(found.bad.errors) == [
        'column \'auction\': "x" is not bigint: {"auction": "x", "channel": "c"}',
        'not JSON (Expecting value: line 1 column 13 (char 12)): {"auction": ',
        "the record is empty:  ",
        'a JSON array instead of an object: [{"auction": 1}]',
        "not UTF-8: b'\\xff\\xfe'",
    ]


def test_one_unreadable_record_leaves_others_to_arrow(
    context: RuntimeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_spark: list[int] = []
    spark = TextValues._by_spark

    def counted(self: TextValues, values: pa.BinaryArray) -> Any:
        by_spark.append(len(values))
        return spark(self, values)

    monkeypatch.setattr(TextValues, "_by_spark", counted)
    values: list[bytes | None] = [b'{"auction": %d}' % number for number in range(10_000)]
    values[5_000] = b'{"auction": 1.5}'
    found = decoded(context, Json("auction BIGINT"), values)
    assert by_spark == [1_024]
    assert found.bad is not None and found.bad.indices.to_pylist() == [5_000]
    assert found.rows.column(0).to_pylist() == [n for n in range(10_000) if n != 5_000]
    assert (
        found.records is not None and found.records.to_pylist() == found.rows.column(0).to_pylist()
    )


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats(allow_nan=True)
    | st.text(max_size=5)
    | st.sampled_from(
        [
            "2026-01-01T00:00:00.123Z",
            "2026-01-01 00:00:00",
            "2026-01-01T00:00:00+02:00",
            "2026-13-01T00:00:00Z",
            "2026-1-1",
            "2026-01-01",
            "0001-01-01",
            "1500-01-01T00:00:00Z",
            "2026-01-01T00:00:00.1234567Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:60Z",
            "T00:00:00Z",
            "1",
            "",
            " 1",
            "true",
            "NaN",
            "-0",
            "é€😀",
        ]
    )
)
NAMES = st.sampled_from(
    ["auction", "price", "channel", "rate", "dateTime", "ok", "day", "item", "bids", "x", "AUCTION"]
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "tags", "x", "auction"]), inner, max_size=3)
    ),
    max_leaves=6,
)
FITTING = st.fixed_dictionaries(
    {},
    optional={
        "auction": st.none() | st.integers(-(2**63), 2**63 - 1),
        "price": st.integers(-(2**31), 2**31 - 1),
        "channel": st.text(max_size=6),
        "rate": st.floats(allow_nan=False) | st.integers(-(2**70), 2**70),
        "dateTime": st.datetimes().map(lambda time: time.isoformat() + "Z"),
        "ok": st.booleans(),
        "day": st.dates().map(str),
        "item": st.none()
        | st.fixed_dictionaries(
            {"id": st.integers(0, 9), "tags": st.lists(st.text(max_size=2), max_size=2)}
        ),
        "bids": st.lists(st.none() | st.integers(-9, 9), max_size=3),
        "x": JSON,
    },
)


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """A record as a producer may write it, and some as none should."""
    value = draw(FITTING | st.dictionaries(NAMES, JSON, max_size=4) | FITTING)
    text = json.dumps(
        value,
        ensure_ascii=draw(st.booleans()),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": ")])),
        indent=draw(st.sampled_from([None, None, None, 1])),
    )
    data = text.encode("utf-8", "surrogatepass")
    match draw(st.integers(0, 14)):
        case 0:  # one byte changed
            at = draw(st.integers(0, max(0, len(data) - 1)))
            byte = draw(st.sampled_from(b"{}[],:\"\\ \n\t\0\x1f0123.eE-+ntfx\xff\xc3'"))
            data = data[:at] + bytes([byte]) + data[at + 1 :]
        case 1:  # cut
            data = data[: draw(st.integers(0, len(data)))]
        case 2:
            data = data + draw(
                st.sampled_from([b"x", b"}", b"{}", b" ", b"\n", b'{"price":1}', b"\0"])
            )
        case 3:
            data = draw(st.sampled_from([b"\xef\xbb\xbf", b" ", b"\n", b"\xff"])) + data
        case 4:  # a key twice
            data = data[:-1] + b',"price":7,"price":8}'
        case 5:
            data = data.replace(b'"', b"'")
        case 6:
            at = draw(st.integers(0, len(data)))
            data = (
                data[:at]
                + draw(
                    st.sampled_from(
                        [
                            b"\\n",
                            b"\\u0041",
                            b"\\ud83d",
                            b"\\/",
                            b"\\x",
                            b"1",
                            b"-",
                            b"01",
                            b"//",
                            b"NaN",
                        ]
                    )
                )
                + data[at:]
            )
    return data


@st.composite
def alike(draw: st.DrawFn) -> list[bytes]:
    """Records that differ in values only, or hardly more: see json_regular."""
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    comma, colon = draw(st.sampled_from([(b",", b":"), (b", ", b": "), (b" ,", b" :")]))
    odd = draw(st.integers(0, 3)) == 0
    quoted = [
        draw(st.booleans()) if odd else name in ("channel", "dateTime", "day", "x", "AUCTION")
        for name in names
    ]
    numbers = st.integers(0, 2**31 - 1).map(str)
    words = {
        "dateTime": st.sampled_from(["2026-01-01T00:00:00.123Z", "2026-01-02T23:59:59.999Z"]),
        "day": st.dates().map(str),
    }
    if odd:
        numbers |= st.integers(0, 10**18).map(str) | st.sampled_from(
            ["0", "00", "01", "-1", "1.5", "", "9" * 20, "3000000000", "null"]
        )
        words = {
            "dateTime": st.sampled_from(
                [
                    *("", "2026-01-01T00:00:00.12Z", "2026-01-01 00:00:00", "2026-02-30 00:00:00Z"),
                    *("2026-01-01T24:00:00Z", "2026-01-01T00:60:00Z", "2026-01-01T00:00:60.0Z"),
                    *("0001-01-01T00:00:00Z", "0000-12-31 23:59:59Z", "2026-01-01t00:00:00Z"),
                    *(
                        "2026-01-01T00:00:00.1234567Z",
                        "2026-01-01 00:00:00.",
                        "2026-1-01 00:00:00Z",
                    ),
                    *(
                        "1500-02-29T00:00:00Z",
                        "1900-01-01T00:00:00.000001Z",
                        "2026-01-01T00:0é:00Z",
                    ),
                ]
            )
        }
    other = st.sampled_from(["", "a", "é", "x:y,z{}", "2026-01-01"])
    values = []
    for _ in range(draw(st.integers(1, 5))):
        fields = []
        for name, is_text in zip(names, quoted, strict=True):
            value = draw(words.get(name, other) if is_text else numbers).encode()
            fields.append(
                b'"%s"%s%s' % (name.encode(), colon, b'"%s"' % value if is_text else value)
            )
        values.append(b"{" + comma.join(fields) + b"}")
    if draw(st.integers(0, 3)) == 0:
        place = draw(st.integers(0, len(values) - 1))
        at = draw(st.integers(0, len(values[place]) - 1))
        changed = bytearray(values[place])
        changed[at] = draw(st.sampled_from(b'",:{}x1 \\'))
        values[place] = bytes(changed)
    return values


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_arrow_reads_what_spark_reads(
    context: RuntimeContext, engine: SparkEngine, zone: str
) -> None:
    before = engine.session.conf.get("spark.sql.session.timeZone")
    engine.session.conf.set("spark.sql.session.timeZone", str(zone))
    fast, slow = TextValues(Json(WIDE)), TextValues(Json(WIDE), by_arrow=False)
    try:
        fast.open(context)
        slow.open(context)
        arrow = fast._arrow
        assert arrow is not None
        read = [0]

        @settings(deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(texts(), min_size=1, max_size=4) | alike())
        def compare(values: list[bytes]) -> None:
            array = pa.array(values, pa.binary())
            expected = slow.rows(array)
            for start, size in [(0, len(array)), *((at, 1) for at in range(len(array)))]:
                found = arrow.rows(array.slice(start, size))
                if found is not None:
                    read[0] += 1
                    assert not {*range(start, start + size)} & {*expected.errors}
                    one = slow.rows(array.slice(start, size))
                    assert found.equals(one.rows), values
            whole = fast.rows(array)
            assert whole.rows.equals(expected.rows) and whole.errors == expected.errors

        compare()
        assert read[0] > 10  # Arrow reads many of them
    finally:
        fast.close()
        slow.close()
        engine.session.conf.set("spark.sql.session.timeZone", str(before))


def test_regular_records_need_no_parser(engine: SparkEngine) -> None:
    record = b'{"auction":%d,"channel":"c%d","dateTime":"2026-01-01T00:00:%02d.000Z"}'
    values = pa.array([record % (n, n, n % 60) for n in range(1, 100)], pa.binary()).slice(3, 90)
    schema = pa.schema(
        [("auction", pa.int64()), ("channel", pa.string()), ("dateTime", pa.timestamp("us", "UTC"))]
    )
    content = _plain_objects(values)
    assert content is not None
    with closing(RegularReader(engine, schema, utc=True)) as reader:
        columns = JsonColumns(schema, reader, utc=True)
        rows = reader.rows(content, _ends(values))
    assert rows is not None and rows.equals(columns._parsed(values))
    assert rows.column(0).to_pylist() == list(range(4, 94))


def test_names_may_be_escaped(context: RuntimeContext) -> None:
    values: list[bytes | None] = [b'{"auct\\u0069on":%d}' % number for number in range(3)]
    found = decoded(context, Json("auction BIGINT"), values)
    assert found.rows.column(0).to_pylist() == [0, 1, 2]


def test_csv_rows_and_unreadable_lines(context: RuntimeContext) -> None:
    values = [b"1;a b", b"x;c", None, b'2;"d;e"', b"3", b""]
    found = decoded(context, Csv("id BIGINT, name STRING", sep=";"), values)
    assert found.rows.to_pylist() == [{"id": 1, "name": "a b"}, {"id": 2, "name": "d;e"}]
    assert found.bad is not None and found.bad.indices.to_pylist() == [1, 4, 5]
    assert found.bad.errors[0] == "not a line of CSV with the columns id int64, name string: x;c"


@pytest.mark.parametrize("format", [Json(), Csv()])
def test_written_rows_can_be_read(context: RuntimeContext, format: Json | Csv) -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("na me", pa.string()), ("time", pa.timestamp("us", "UTC"))]
    )
    rows = [
        {"id": 1, "na me": 'a,"b', "time": 1_000_000},
        {"id": None, "na me": "é\n", "time": None},
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    writer = encoder(format, schema.names)
    writer.open(context, schema)
    texts = writer.encode(batch)
    writer.close()
    assert len(texts) == 2 and texts.type == pa.binary()
    reading = type(format)(schema)
    if isinstance(reading, Json):
        found = decoded(context, reading, texts.to_pylist())
        assert found.rows.equals(batch)
    else:
        assert texts[0].as_py() == b'1,"a,\\"b",1970-01-01T00:00:01.000Z'


def test_schemas_are_known_before_data_flows(engine: SparkEngine) -> None:
    schema = decoded_schema(Json("a INT"), engine, metadata=["topic", "headers"])
    assert schema.names == ["a", "topic", "headers"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "FAILFAST"}, "on_unreadable decides"),
        ({"timestampFromat": "x"}, "did you mean timestampFormat?"),
        ({"multiLine": True}, "has no option 'multiLine'"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidProgram, match=message.replace("?", r"\?")):
        Json("a INT", **options)


def test_a_source_reads_json_and_drops_unreadable_records(
    kafka: Kafka, engine: SparkEngine
) -> None:
    topic = "json-of-a-source"
    create_topic(kafka, topic)
    values = [b'{"id": 1}', b'{"id": "x"}', None, b'{"id": 2, "name": "b"}']
    produce(kafka, topic, [Record(value=value) for value in values])
    source = KafkaSource(
        topic,
        bootstrap_servers=kafka.bootstrap,
        end="latest",
        format=Json("id INT, name STRING"),
        metadata=("offset",),
        on_unreadable="drop",
    )
    reading = KafkaReading(source, None, check_and_plan(source))
    harness = OperatorHarness(reading, spark=engine.session)
    harness.open()
    try:
        while harness.poll():
            if harness.operator.waiting:
                harness.environment.mailbox.wait(0.1)
        assert harness.rows() == [
            {"id": 1, "name": None, "offset": 0},
            {"id": 2, "name": "b", "offset": 3},
        ]
    finally:
        harness.close()
