"""Protobuf messages, with or without the id of their schema in a registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from firesteel.connectors.kafka.formats import Confluent, Protobuf
from firesteel.operator import RuntimeContext
from taskexecutor.executor.connectors.kafka import unreadable
from taskexecutor.executor.connectors.kafka.clients import resolved
from taskexecutor.executor.connectors.kafka.decoders.avro import HEAD, ids_of
from taskexecutor.executor.connectors.kafka.decoders.values import Rows, Values, chosen
from taskexecutor.executor.connectors.kafka.registry import RegistryClient
from taskexecutor.executor.protobuf_rows import ProtobufRows


class _Payload(NamedTuple):
    message: bytes
    error: str = ""


class ProtobufValues(Values):
    """Fields are found by their numbers, so the reader's message reads all versions of it."""

    def __init__(self, format: Protobuf | Confluent) -> None:
        self._registered = format if isinstance(format, Confluent) else None
        protobuf = format.format if isinstance(format, Confluent) else format
        assert isinstance(protobuf, Protobuf)
        self._protobuf = protobuf
        self._registry: RegistryClient | None = None

    @property
    def schema(self) -> pa.Schema:
        return self._messages.schema

    def open(self, context: RuntimeContext) -> None:
        self._messages = ProtobufRows(self._protobuf.message, self._protobuf.descriptors)
        if self._registered is not None:
            registry = self._registered.registry
            self._registry = RegistryClient(
                registry, resolved(registry.properties), lambda: context.cancelled
            )

    def rows(self, values: pa.BinaryArray) -> Rows:
        given: list[bytes] = values.to_pylist()
        errors: dict[int, str] = {}
        if self._registry is not None:
            problems = {id: self._registry.problem(id, "PROTOBUF") for id in ids_of(values)}
            payloads = [_payload(value, problems) for value in given]
            errors = {at: found.error for at, found in enumerate(payloads) if found.error}
            given = [found.message for found in payloads]
        rows, refused = self._messages.rows(given)
        texts = {**refused, **errors}
        return chosen(
            rows,
            {at: f"{text}: {unreadable.shown(values[at].as_py())}" for at, text in texts.items()},
        )


def _payload(value: bytes, problems: Mapping[int, str]) -> _Payload:
    """Returns the message after the schema's id and the message's place in the schema."""
    if len(value) <= HEAD or value[0]:
        return _Payload(b"", "the record does not start with a zero byte and a schema's id")
    if problem := problems[int.from_bytes(value[1:HEAD])]:
        return _Payload(b"", problem)
    at = HEAD
    count, at = _varint(value, at)
    for _ in range(count):
        _, at = _varint(value, at)
    if at > len(value) or count < 0:
        return _Payload(b"", "the place of the message in its schema is incomplete")
    return _Payload(value[at:])


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """Returns a zigzag number and where the next one starts, past the end if it is incomplete."""
    found = shift = 0
    while at < len(value):
        byte = value[at]
        found |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if not byte & 128:
            return (found >> 1) ^ -(found & 1), at
    return 0, len(value) + 1
