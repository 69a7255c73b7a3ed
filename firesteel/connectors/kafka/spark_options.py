"""Options of Spark's Kafka source, and the columns of its sink, with Spark's meanings."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from firesteel.connectors.checks import option_texts
from firesteel.connectors.kafka.java_properties import librdkafka_properties
from firesteel.connectors.kafka.offsets import EARLIEST, LATEST, KafkaOffsets
from firesteel.errors import InvalidProgram

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_WHAT = "KafkaSource"
_DISCOVERY_INTERVAL = "10 s"
_TOPICS = ("assign", "subscribe", "subscribePattern")
_STARTS = (
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    "startingOffsetsByTimestampStrategy",
)
_ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
# How Spark divides and schedules its work, which does not change the rows.
_WITHOUT_EFFECT = (
    *("maxRecordsPerPartition", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
    "groupIdPrefix",
)
_OTHERS = ("failOnDataLoss", "includeHeaders", "maxOffsetsPerTrigger", "minPartitions")
_KNOWN = {name.lower(): name for name in (*_TOPICS, *_STARTS, *_ENDS, *_WITHOUT_EFFECT, *_OTHERS)}
_PROPERTY = "kafka."
# The types of a record's columns.
_COLUMNS = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}


def source_arguments(options: Mapping[str, object], *, bounded: bool) -> dict[str, Any]:
    """Returns the arguments of KafkaSource. Raises InvalidProgram for options that Spark refuses,
    and for unknown ones.
    """
    texts = option_texts(options)
    properties = {
        name[len(_PROPERTY) :]: value
        for name, value in texts.items()
        if name.lower().startswith(_PROPERTY)
    }
    given = {
        _known(name): value
        for name, value in texts.items()
        if not name.lower().startswith(_PROPERTY)
    }
    servers = properties.pop("bootstrap.servers", None)
    if servers is None:
        raise InvalidProgram(f"{_WHAT}: the option kafka.bootstrap.servers is required")
    if not bounded and (ends := [name for name in _ENDS if name in given]):
        raise InvalidProgram(
            f"{_WHAT}: {ends[0]} is for bounded reads, not for streams; use spark.read, or"
            " trigger(availableNow=True) without this option (in from_spark_options: bounded=True)"
        )
    limit, ranges = given.get("maxOffsetsPerTrigger"), given.get("minPartitions")
    headers = _flag(given, "includeHeaders", False)
    return {
        **_topics(given),
        "bootstrap_servers": servers,
        "group_id": properties.pop("group.id", None),
        "start": _start(given, bounded=bounded),
        "end": _end(given) if bounded else None,
        "fail_on_data_loss": _flag(given, "failOnDataLoss", True),
        "max_records_per_checkpoint": None
        if limit is None or bounded
        else _integer("maxOffsetsPerTrigger", limit),
        "min_partitions": None if ranges is None else _integer("minPartitions", ranges),
        "metadata": ("headers",) if headers else (),
        # Spark lists the topics again in each micro-batch.
        "partition_discovery_interval": _DISCOVERY_INTERVAL,
        "properties": librdkafka_properties(_WHAT, properties),
    }


def poll_timeout_s(options: Mapping[str, object]) -> float:
    """Returns for how long a batch waits for the next record. Raises InvalidProgram."""
    return _time_s(options, "kafkaConsumer.pollTimeoutMs", 120_000)


def max_block_s(options: Mapping[str, object]) -> float:
    """Returns for how long a batch waits for a broker before it writes. Raises InvalidProgram."""
    return _time_s(options, "kafka.max.block.ms", 60_000)


def _time_s(options: Mapping[str, object], name: str, default_ms: int) -> float:
    texts = {key.lower(): text for key, text in option_texts(options).items()}
    text = texts.get(name.lower(), str(default_ms))
    if not text.isdecimal():
        raise InvalidProgram(f"the option {name} is {text!r}; use a number of milliseconds")
    return int(text) / 1_000


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raises InvalidProgram unless Spark's sink with the option `topic` accepts the columns."""
    types = {field.name.lower(): field.dataType.simpleString() for field in schema.fields}
    if "value" not in types:
        raise InvalidProgram(
            f"Required attribute 'value' not found. The columns are: {', '.join(types)}"
        )
    if topic is None and "topic" not in types:
        raise InvalidProgram(
            "topic option required when no 'topic' attribute is present. Use the topic option for"
            " setting a topic."
        )
    for name, allowed in _COLUMNS.items():
        if (kind := types.get(name)) is not None and kind not in allowed:
            raise InvalidProgram(
                f"{name} attribute type must be {' or '.join(allowed)}, not {kind}"
            )


def _known(name: str) -> str:
    known = _KNOWN.get(name.lower())
    if known is None:
        names = {**_KNOWN, f"{_PROPERTY}bootstrap.servers": "kafka.bootstrap.servers"}
        near = difflib.get_close_matches(name.lower(), names, n=1)
        hint = (
            f"did you mean {names[near[0]]}?" if near else f"allowed: {', '.join(_KNOWN.values())}"
        )
        raise InvalidProgram(
            f"{_WHAT}: Spark's Kafka source has no option {name!r}; {hint}"
            " Properties of Kafka start with kafka."
        )
    return known


def _topics(given: Mapping[str, str]) -> dict[str, Any]:
    chosen = [name for name in _TOPICS if name in given]
    if len(chosen) != 1:
        raise InvalidProgram(
            f"{_WHAT}: exactly one of {', '.join(_TOPICS)} is required, not"
            f" {', '.join(chosen) or 'none'}"
        )
    text = given[chosen[0]]
    match chosen[0]:
        case "subscribe":
            return {"topics": [name.strip() for name in text.split(",") if name.strip()]}
        case "subscribePattern":
            return {"topic_pattern": text}
        case _:
            parsed = _json("assign", text)
            if not all(isinstance(numbers, list) for numbers in parsed.values()):
                raise InvalidProgram(
                    f'{_WHAT}: assign is {text!r}; use JSON such as {{"topic": [0, 1]}}'
                )
            return {"partitions": parsed}


def _start(given: Mapping[str, str], *, bounded: bool) -> KafkaOffsets:
    strategy = given.get("startingOffsetsByTimestampStrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise InvalidProgram(
            f"{_WHAT}: startingOffsetsByTimestampStrategy is {strategy!r}; allowed: error, latest"
        )
    otherwise = "fail" if strategy == "error" else "latest"
    by_time = _by_time(given, "starting", otherwise)
    if by_time is not None:
        return by_time
    text = given.get("startingOffsets", "earliest" if bounded else "latest")
    found = _offsets("startingOffsets", text)
    if bounded and (found.place == "latest" or _has(found, LATEST)):
        raise InvalidProgram(
            f"{_WHAT}: startingOffsets is {text!r}; a bounded read cannot start at the latest"
            " offsets"
        )
    return found


def _end(given: Mapping[str, str]) -> KafkaOffsets:
    by_time = _by_time(given, "ending", "latest")
    if by_time is not None:
        return by_time
    text = given.get("endingOffsets", "latest")
    found = _offsets("endingOffsets", text)
    if found.place == "earliest" or _has(found, EARLIEST):
        raise InvalidProgram(
            f"{_WHAT}: endingOffsets is {text!r}; a bounded read cannot end at the earliest offsets"
        )
    return found


def _by_time(given: Mapping[str, str], which: str, otherwise: Any) -> KafkaOffsets | None:
    one = given.get(f"{which}Timestamp")
    if one is not None:
        return KafkaOffsets.at(_integer(f"{which}Timestamp", one, least=0), otherwise)
    several = given.get(f"{which}OffsetsByTimestamp")
    if several is None:
        return None
    times = _by_partition(f"{which}OffsetsByTimestamp", several)
    return KafkaOffsets(timestamps_ms=times, otherwise=otherwise)


def _offsets(name: str, text: str) -> KafkaOffsets:
    match text.strip().lower():
        case "earliest":
            return KafkaOffsets.earliest()
        case "latest":
            return KafkaOffsets.latest()
        case _:
            return KafkaOffsets.of(_by_partition(name, text))


def _has(offsets: KafkaOffsets, number: int) -> bool:
    return any(number in by_partition.values() for by_partition in offsets.offsets.values())


def _by_partition(name: str, text: str) -> dict[str, dict[int, int]]:
    try:
        return {
            topic: {int(partition): int(number) for partition, number in by_partition.items()}
            for topic, by_partition in _json(name, text).items()
        }
    except (ValueError, TypeError, AttributeError):
        raise InvalidProgram(
            f'{_WHAT}: {name} is {text!r}; use JSON such as {{"topic": {{"0": 23, "1": -2}}}}'
        ) from None


def _json(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidProgram(f"{_WHAT}: {name} is {text!r}, which is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidProgram(f"{_WHAT}: {name} is {text!r}; use a JSON object of topics")
    return found


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise InvalidProgram(f"{_WHAT}: {name} is {text!r}; allowed: true, false")
    return text == "true"


def _integer(name: str, text: str, least: int = 1) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise InvalidProgram(f"{_WHAT}: {name} is {text!r}; use an integer from {least} on")
    return number
