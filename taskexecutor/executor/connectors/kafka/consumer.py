"""Takes records from librdkafka as Arrow columns, without a Python object for each record.

confluent-kafka's consumer does everything else: connections, assignment, callbacks, commits. The
records of its partitions go to a separate queue of librdkafka. Numpy reads the fields of all
messages of a batch from memory, and Arrow copies keys and values: see docs/decisions/0052.

Timestamps and the list of messages are at places that librdkafka does not document. `supported`
knows the versions for which they hold, and each batch compares one message with the public calls.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from firesteel.errors import FiresteelError
from taskexecutor.executor.connectors.kafka import clients
from taskexecutor.executor.connectors.kafka.memory import WORD, Integers, strings, words
from taskexecutor.executor.connectors.kafka.records import HEADERS, RECORDS, RECORDS_WITH_HEADERS

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError

_VERSIONS = range(0x021000, 0x021100)  # of librdkafka: 2.16
# Words of rd_kafka_message_t, and of the private structure that starts with it.
_ERROR, _TOPIC, _PARTITION, _VALUE, _VALUE_SIZE, _KEY, _KEY_SIZE, _OFFSET = range(8)
_KIND_OF_TIME, _TIME = 11, 12  # the former in the upper half
_NO_TIME, _LOG_APPEND_TIME = 0, 2
_LOW, _HALF = 0xFFFFFFFF, 32
_PARTITION_EOF = -191


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionError:
    """An error of one partition, or its end (`_PARTITION_EOF`), which is at `offset`."""

    error: KafkaError
    topic: str
    partition: int
    offset: int


def supported() -> bool:
    """Whether the installed client's memory has the known layout."""
    version = clients.library().libversion()[1] >> 8
    return version in _VERSIONS and sys.platform == "linux" and sys.maxsize > 2**32


class ArrowConsumer:
    """The records of `consumer`, whose partitions are passed to `forward` before they are assigned.
    Otherwise the consumer is used as usual, also for pauses and seeks. Its own `poll` calls
    callbacks, and returns errors of the client, never records. One thread polls. `close` precedes
    the consumer's. `on_error` gets errors that are not of a partition, and takes the place of the
    consumer's `error_cb`, which would end the process when `poll` here calls it.
    """

    def __init__(
        self,
        consumer: Consumer,
        *,
        headers: bool = False,
        on_error: Callable[[KafkaError], object] = lambda error: None,
    ) -> None:
        if not supported():
            version = clients.library().libversion()[0]
            raise FiresteelError(f"the layout of librdkafka {version} is unknown")
        self.errors: list[PartitionError] = []  # found by `poll`; the caller removes them
        self._headers = headers
        self._consumer = consumer
        self._library = _Library()
        # The first field of the extension's object after Python's own.
        field = ctypes.c_void_p.from_address(id(consumer) + object.__basicsize__)
        self._client = field.value
        self._queue = self._library.queue_new(self._client)
        callback = _ErrorCallback(
            lambda client, code, reason, opaque: on_error(
                clients.library().KafkaError(code, (reason or b"").decode(errors="replace"))
            )
        )
        _CALLBACKS.append(callback)
        self._library.set_error_callback(self._library.configuration(self._client), callback)

    def forward(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Lets records of these partitions, by topic and number, come here."""
        for topic, partition in partitions:
            queue = self._library.queue_of_partition(self._client, topic.encode(), partition)
            self._library.queue_forward(queue, self._queue)
            self._library.queue_destroy(queue)

    def poll(self, max_rows: int, timeout_s: float) -> pa.RecordBatch | None:
        """Returns the records that have arrived, in Spark's columns, and waits for the first one.
        Returns None if there are none, or only `errors`.
        """
        library = self._library
        batch = library.malloc(WORD * (1 + max_rows))
        messages = batch + WORD  # after their number
        # librdkafka waits for the whole number of messages: the first one, then the others.
        count = library.consume_batch(self._queue, round(timeout_s * 1_000), messages, 1)
        if count == 1 and max_rows > 1:
            count += max(0, library.consume_batch(self._queue, 0, messages + WORD, max_rows - 1))
        ctypes.c_size_t.from_address(batch).value = max(count, 0)
        try:
            return self._batch(words(_range(messages, count), 0)) if count > 0 else None
        finally:
            library.messages_destroy(batch)

    def close(self) -> None:
        """Forgets the records that were not polled."""
        self._library.queue_destroy(self._queue)

    def _batch(self, messages: Integers) -> pa.RecordBatch | None:
        failed = (words(messages, _ERROR) & _LOW) != 0
        if failed.any():
            self.errors += map(self._error, messages[failed].tolist())
            messages = messages[~failed]
            if not len(messages):
                return None
        times = words(messages, _TIME)
        kinds = words(messages, _KIND_OF_TIME) >> _HALF
        self._check(int(messages[0]), int(times[0]), int(kinds[0]))
        columns = [
            strings(words(messages, _KEY), words(messages, _KEY_SIZE)),
            strings(words(messages, _VALUE), words(messages, _VALUE_SIZE)),
            self._topics(words(messages, _TOPIC)),
            pa.array(words(messages, _PARTITION).astype(np.int32)),
            pa.array(words(messages, _OFFSET)),
            _timestamps(times, kinds),
            pa.array((kinds == _LOG_APPEND_TIME).astype(np.int32)),
        ]
        schema = RECORDS
        if self._headers:
            schema = RECORDS_WITH_HEADERS
            found = map(self._library.headers, messages.tolist())
            columns.append(pa.array(list(found), schema.field(HEADERS).type))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _topics(self, pointers: Integers) -> pa.Array:
        if (pointers == pointers[0]).all():
            return pa.repeat(pa.scalar(self._topic(int(pointers[0]))), len(pointers))
        unique, codes = np.unique(pointers, return_inverse=True)
        names = pa.array([self._topic(pointer) for pointer in unique.tolist()])
        return pa.DictionaryArray.from_arrays(codes, names).cast(pa.string())

    def _topic(self, pointer: int) -> str:
        name: bytes = self._library.topic_name(pointer)
        return name.decode()

    def _error(self, message: int) -> PartitionError:
        at = np.array([message])
        code = int(words(at, _ERROR).astype(np.int32)[0])
        reason = None
        if code != _PARTITION_EOF:  # which is frequent, and says all
            (reason,) = strings(words(at, _VALUE), words(at, _VALUE_SIZE)).to_pylist()
        return PartitionError(
            error=clients.library().KafkaError(code, (reason or b"").decode(errors="replace")),
            topic=self._topic(int(words(at, _TOPIC)[0])),
            partition=int(words(at, _PARTITION).astype(np.int32)[0]),
            offset=int(words(at, _OFFSET)[0]),
        )

    def _check(self, message: int, time_ms: int, kind: int) -> None:
        expected = self._library.timestamp(message)
        if expected != (time_ms, kind):
            raise FiresteelError(
                f"librdkafka says that a record has the timestamp {expected}, its memory"
                f" {(time_ms, kind)}; the layout of this version is unknown"
            )


def _range(start: int, count: int) -> Integers:
    """The addresses of consecutive words."""
    return np.arange(start, start + WORD * count, WORD, dtype=np.int64)


def _timestamps(times_ms: Integers, kinds: Integers) -> pa.Array:
    """Returns null for records without a timestamp."""
    missing = kinds == _NO_TIME
    mask = missing if missing.any() else None
    return pa.array(times_ms * 1_000, mask=mask).cast(pa.timestamp("us", "UTC"))


_ErrorCallback = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p
)
_CALLBACKS: list[Any] = []  # librdkafka may call them until its client is destroyed


class _Library:
    """Functions of librdkafka, in the library that confluent-kafka has loaded."""

    def __init__(self) -> None:
        # Its symbols are found through the extension that depends on it.
        extension = clients.library("confluent_kafka.cimpl").__file__
        loaded, standard = ctypes.CDLL(extension), ctypes.CDLL(None)
        pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
        name = ctypes.c_char_p

        def function(of: str, result: Any, *arguments: Any, library: Any = loaded) -> Any:
            found = getattr(library, of)
            found.restype, found.argtypes = result, arguments
            return found

        self.malloc = function("malloc", pointer, size, library=standard)
        self.configuration = function("rd_kafka_conf", pointer, pointer)
        self.set_error_callback = function(
            "rd_kafka_conf_set_error_cb", None, pointer, _ErrorCallback
        )
        self.queue_new = function("rd_kafka_queue_new", pointer, pointer)
        self.queue_destroy = function("rd_kafka_queue_destroy", None, pointer)
        self.queue_forward = function("rd_kafka_queue_forward", None, pointer, pointer)
        self.queue_of_partition = function(
            "rd_kafka_queue_get_partition", pointer, pointer, name, ctypes.c_int32
        )
        self.consume_batch = function(
            "rd_kafka_consume_batch_queue", ctypes.c_ssize_t, pointer, number, pointer, size
        )
        # Destroys the messages, then frees their list: their number and their addresses.
        self.messages_destroy = function("rd_kafka_messages_destroy", None, pointer)
        self.topic_name = function("rd_kafka_topic_name", name, pointer)
        self._timestamp = function("rd_kafka_message_timestamp", ctypes.c_int64, pointer, pointer)
        self._headers = function("rd_kafka_message_headers", number, pointer, pointer)
        self._header = function(
            "rd_kafka_header_get_all", number, pointer, size, pointer, pointer, pointer
        )

    def timestamp(self, message: int) -> tuple[int, int]:
        """Returns the time in milliseconds, and its kind."""
        kind = ctypes.c_int()
        return self._timestamp(message, ctypes.byref(kind)), kind.value

    def headers(self, message: int) -> list[dict[str, Any]] | None:
        headers = ctypes.c_void_p()
        if self._headers(message, ctypes.byref(headers)):
            return None  # there are none
        name, value, size = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_size_t()
        outputs = [ctypes.byref(output) for output in (name, value, size)]
        found: list[dict[str, Any]] = []
        while not self._header(headers, len(found), *outputs):
            content = ctypes.string_at(value.value, size.value) if value.value else None
            found.append({"key": (name.value or b"").decode(), "value": content})
        return found
