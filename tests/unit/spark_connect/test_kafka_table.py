"""The format "kafka" of batch queries: their options and columns are checked first."""

from __future__ import annotations

import pytest
from pyspark.sql.connect import proto
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType

from firesteel.connectors.kafka.spark_options import check_columns, max_block_s, poll_timeout_s
from firesteel.errors import InvalidProgram
from firesteel.spark_connect.kafka_table import FORMAT, renamed
from firesteel.spark_connect.refusals import Refused, SparkError

SERVERS = {"kafka.bootstrap.servers": "localhost:1"}


def read(is_streaming: bool = False, **options: str) -> proto.Relation:
    source = proto.Read.DataSource(format="Kafka", options={**SERVERS, **options})
    of = proto.Relation(read=proto.Read(data_source=source, is_streaming=is_streaming))
    return proto.Relation(limit=proto.Limit(input=of, limit=1))


def write(**options: str) -> proto.WriteOperation:
    of = read(subscribe="t")
    return proto.WriteOperation(input=of, source="kafka", options={**SERVERS, **options})


def test_the_format_has_another_name_in_spark() -> None:
    assert renamed(read(subscribe="t")).limit.input.read.data_source.format == FORMAT
    operation = renamed(write(topic="t"))
    assert operation.source == operation.input.limit.input.read.data_source.format == FORMAT
    assert operation.mode == proto.WriteOperation.SAVE_MODE_APPEND


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (read(), "exactly one of assign, subscribe, subscribePattern"),
        (read(subscribe="t", startingOffset="x"), "did you mean startingOffsets?"),
        (read(subscribe="t", startingOffsets="latest"), "cannot start at the latest offsets"),
        (read(**{"subscribe": "t", "kafkaConsumer.pollTimeoutMs": "1s"}), "pollTimeoutMs is '1s';"),
        (write(topics="t"), "has no option 'topics'"),
        (write(**{"kafka.max.block.ms": "-1"}), "use a number of milliseconds"),
    ],
)
def test_wrong_options_are_refused_before_spark_sees_them(
    message: proto.Relation | proto.WriteOperation, problem: str
) -> None:
    with pytest.raises(Refused) as refused:
        renamed(message)
    assert problem in str(refused.value)
    assert refused.value.error is SparkError.ILLEGAL_ARGUMENT


def test_a_stream_may_start_at_the_latest_offsets() -> None:
    renamed(read(True, subscribe="t", startingOffsets="latest"))


HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))


def schema(**columns: DataType | str) -> StructType:
    fields = StructType()
    for name, kind in columns.items():
        fields.add(name, kind)
    return fields


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (schema(value="long"), "value attribute type must be string or binary, not bigint"),
        (schema(value="boolean"), "value attribute type must be string or binary, not boolean"),
        (schema(value="string", KEY="integer"), "key attribute type must be string or binary"),
        (schema(value="string", topic="integer"), "topic attribute type must be string, not int"),
        (schema(value="string", partition="long"), "partition attribute type must be int, not b"),
        (
            schema(value="string", headers="string"),
            "headers attribute type must be array<struct<key:string,value:binary>>, not string",
        ),
        (schema(key="string"), "Required attribute 'value' not found. The columns are: key"),
    ],
)
def test_columns_have_the_types_of_sparks_sink(columns: StructType, problem: str) -> None:
    with pytest.raises(InvalidProgram) as raised:
        check_columns(columns, "t")
    assert problem in str(raised.value)


def test_a_topic_is_an_option_or_a_column() -> None:
    check_columns(schema(value="binary", key="string", partition="integer", headers=HEADERS), "t")
    check_columns(schema(value="string", topic="string", other="date"), None)
    with pytest.raises(InvalidProgram, match="topic option required"):
        check_columns(schema(value="string"), None)


def test_batches_do_not_wait_for_ever() -> None:
    assert (poll_timeout_s({}), max_block_s({})) == (120, 60)
    assert max_block_s({"kafka.max.block.ms": 5000}) == 5
    assert poll_timeout_s({"kafkaconsumer.polltimeoutms": "1500"}) == 1.5
