"""Rows as records to send: topic, value, key, partition and headers of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.column_names import meant
from firesteel.connectors.kafka.formats import Raw
from firesteel.connectors.kafka.sink import BY_KEY, BY_KEY_GROUP, ROUND_ROBIN, KafkaSink
from firesteel.errors import FiresteelError
from firesteel.operator import RuntimeContext
from firesteel.row_kind import DELETE, INSERT, ROW_KIND
from taskexecutor.executor.connectors.checks import named_columns
from taskexecutor.executor.connectors.kafka.encoders import Encoder, encoder
from taskexecutor.executor.connectors.kafka.records import HEADERS, KEY, VALUE
from taskexecutor.executor.exchange.partitioning.routing import key_groups

ANY_PARTITION = -1  # the client decides, by the key

Outgoing: TypeAlias = tuple[Any, ...]
"""The positional arguments of Producer.produce: topic, value, key, partition, and possibly
two for callbacks, timestamp and headers.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The records of a batch."""

    records: Iterator[Outgoing]
    count: int
    size_bytes: int  # of keys and values


class Columns:
    """The columns that make up a record. Raises FiresteelError if the rows do not have them."""

    def __init__(self, sink: KafkaSink, schema: pa.Schema) -> None:
        self._schema = schema
        self.topic = None if sink.topic is not None else self._required("topic", "the topic")
        self.headers = self._headers(sink)
        self.kind = meant(ROW_KIND, schema.names) if sink.upsert else None
        self.partition = self._partition(sink)
        if sink.value is None:
            self.value: tuple[str, ...] = (self._required(VALUE, "the value"),)
            key = meant(KEY, schema.names)
            if key is None and (sink.upsert or sink.partition_by == BY_KEY_GROUP):
                key = self._required(KEY, "the key")
            self.key: tuple[str, ...] = () if key is None else (key,)
            for name in (*self.value, *self.key):
                self._check(name, _is_bytes, "string or binary")
        else:
            self.key = named_columns("KafkaSink: key column", sink.key_columns, schema)
            left_out = {self.topic, self.headers, self.kind}
            if isinstance(sink.value, Raw):  # which writes one column
                left_out |= {*self.key, self.partition}
            self.value = tuple(name for name in schema.names if name not in left_out)

    def _headers(self, sink: KafkaSink) -> str | None:
        if sink.headers is not None:
            (name,) = named_columns("KafkaSink: headers column", [sink.headers], self._schema)
        elif sink.value is None and (found := meant(HEADERS, self._schema.names)) is not None:
            name = found
        else:
            return None
        self._check(name, _is_headers, "array<struct<key: string, value: binary>>")
        return name

    def _partition(self, sink: KafkaSink) -> str | None:
        """The column with numbers of partitions."""
        if sink.partition_by not in (BY_KEY, BY_KEY_GROUP, ROUND_ROBIN):
            (name,) = named_columns("KafkaSink: partition_by", [sink.partition_by], self._schema)
        elif sink.value is None and (found := meant("partition", self._schema.names)) is not None:
            name = found
        else:
            return None
        self._check(name, pa.types.is_integer, "an integer")
        return name

    def _required(self, name: str, purpose: str) -> str:
        column = meant(name, self._schema.names)
        if column is None:
            hint = "; or pass topic='...'" if name == "topic" else ""
            hint = "; or pass a format, such as value=Json()" if name == VALUE else hint
            raise FiresteelError(
                f"KafkaSink: the column {name!r} with {purpose} of each record is missing; the"
                f" stream has: {', '.join(self._schema.names)}{hint}"
            )
        self._check(column, _is_bytes, "string or binary")
        return column

    def _check(self, name: str, fits: Callable[[pa.DataType], bool], allowed: str) -> None:
        kind = self._schema.field(name).type
        if not fits(kind):
            raise FiresteelError(
                f"KafkaSink: column {name!r} is {kind}; it must be {allowed}: cast it"
            )


class Records:
    """Converts the batches of one subtask."""

    def __init__(
        self,
        sink: KafkaSink,
        columns: Columns,
        context: RuntimeContext,
        partitions: Callable[[str], int],
    ) -> None:
        self._sink = sink
        self._columns = columns
        self._partitions = partitions  # the number of a topic's
        self._max_parallelism = context.task.max_parallelism
        self._next = context.task.subtask  # for round robin
        self._checked: set[str] = set()  # topics that exist
        self._context = context
        self._encoders: dict[tuple[bool, str], Encoder] = {}

    def of(self, batch: pa.RecordBatch) -> Bundle:
        topics = self._topics(batch)
        keys, values = self._keys(batch), self._values(batch)
        parts: tuple[Iterable[Any], ...] = (
            topics,
            _objects(values),
            repeat(None) if keys is None else _objects(keys),
            self._numbers(batch, topics),
        )
        if self._columns.headers is not None:
            headers = _headers(batch.column(self._columns.headers))
            parts = (*parts, repeat(None), repeat(None), repeat(0), headers)
        return Bundle(
            records=zip(*parts, strict=False),
            count=batch.num_rows,
            size_bytes=_size_bytes(values) + (0 if keys is None else _size_bytes(keys)),
        )

    def close(self) -> None:
        for each in self._encoders.values():
            each.close()
        self._encoders = {}

    def _topics(self, batch: pa.RecordBatch) -> Any:
        if self._columns.topic is None:
            assert self._sink.topic is not None
            self._check_topic(self._sink.topic)
            return repeat(self._sink.topic, batch.num_rows)
        column = batch.column(self._columns.topic).cast(pa.string())
        if column.null_count:
            raise FiresteelError(
                "KafkaSink: the column 'topic' of a row is null; give it a value, or pass"
                " topic='...'"
            )
        for topic in column.unique().to_pylist():
            self._check_topic(topic)
        return _objects(column)

    def _check_topic(self, topic: str) -> None:
        if topic not in self._checked:
            self._partitions(topic)  # raises
            self._checked.add(topic)

    def _keys(self, batch: pa.RecordBatch) -> pa.Array | None:
        columns = self._columns.key
        if not columns:
            return None
        keys = self._encoded(batch, columns, key=True)
        if self._sink.upsert and keys.null_count:
            raise FiresteelError(
                f"KafkaSink: the key ({', '.join(columns)}) of a row is null; in an upsert it"
                " identifies the row to replace: give it a value"
            )
        return keys

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        values = self._encoded(batch, self._columns.value, key=False)
        if self._columns.kind is not None:
            kinds = batch.column(self._columns.kind).cast(pa.string())
            deleted = pc.fill_null(pc.equal(kinds, DELETE), False)
            known = pc.is_in(kinds, pa.array([INSERT, DELETE, None], pa.string()))
            if not pc.all(known).as_py():
                wrong = kinds.filter(pc.invert(known))[0].as_py()
                raise FiresteelError(
                    f"KafkaSink: a row's {ROW_KIND} is {wrong!r}; in an upsert it must be"
                    f" {INSERT!r} or {DELETE!r}"
                )
            values = pc.if_else(deleted, pa.scalar(None, values.type), values)
        return values

    def _encoded(self, batch: pa.RecordBatch, names: tuple[str, ...], *, key: bool) -> pa.Array:
        if self._sink.value is None:
            column = batch.column(names[0])
            large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
            return column.cast(pa.large_binary() if large else pa.binary())
        return self._encoder(batch.schema, names, key=key).encode(batch)

    def _encoder(self, schema: pa.Schema, names: tuple[str, ...], *, key: bool) -> Encoder:
        topic = self._sink.topic or ""
        found = self._encoders.get((key, topic))
        if found is None:
            form = key_format(self._sink, schema, names) if key else self._sink.value
            assert form is not None
            found = encoder(form, names, topic=topic, key=key)
            self._encoders[key, topic] = found
            found.open(self._context, schema)
        return found

    def _numbers(self, batch: pa.RecordBatch, topics: Any) -> Any:
        column, otherwise = self._columns.partition, self._sink.partition_by
        given = None
        if column is not None:
            numbers = pc.fill_null(batch.column(column).cast(pa.int64()), ANY_PARTITION)
            given = numbers.to_numpy(zero_copy_only=False)
            if otherwise not in (BY_KEY_GROUP, ROUND_ROBIN):
                return given.tolist()
        if otherwise == BY_KEY:
            return repeat(ANY_PARTITION, batch.num_rows)
        decided = self._decided(batch, topics)
        if given is not None:
            decided = np.where(given == ANY_PARTITION, decided, given)
        return decided.tolist()

    def _decided(self, batch: pa.RecordBatch, topics: Any) -> npt.NDArray[np.int64]:
        if self._columns.topic is None:
            assert self._sink.topic is not None
            counts: Any = self._partitions(self._sink.topic)
        else:
            of_topic = {topic: self._partitions(topic) for topic in set(topics)}
            counts = np.array([of_topic[topic] for topic in topics], np.int64)
        if self._sink.partition_by == ROUND_ROBIN:
            numbers = np.arange(self._next, self._next + batch.num_rows, dtype=np.int64)
            self._next += batch.num_rows
            chosen: npt.NDArray[np.int64] = numbers % counts
            return chosen
        groups = key_groups(batch, self._columns.key, self._max_parallelism).astype(np.int64)
        ranges: npt.NDArray[np.int64] = groups * counts // self._max_parallelism
        return ranges


def key_format(sink: KafkaSink, schema: pa.Schema, names: tuple[str, ...]) -> Any:
    """Returns the format of the key."""
    if sink.key_format is not None:
        return sink.key_format
    single = len(names) == 1 and _is_bytes(schema.field(names[0]).type)
    return Raw() if single else sink.value


def _objects(column: pa.Array) -> list[Any]:
    return list(column.to_numpy(zero_copy_only=False))


def _size_bytes(column: pa.Array) -> int:
    return pc.sum(pc.binary_length(column)).as_py() or 0


def _headers(column: pa.Array) -> list[list[tuple[str, bytes | None]]]:
    return [
        [(header["key"], header["value"]) for header in headers or ()]
        for headers in column.to_pylist()
    ]


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_binary(kind)
        or types.is_large_string(kind)
        or types.is_large_binary(kind)
    )


def _is_headers(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    entry = kind.value_type
    if not pa.types.is_struct(entry) or {field.name for field in entry} != {"key", "value"}:
        return False
    return _is_bytes(entry.field("key").type) and _is_bytes(entry.field("value").type)
