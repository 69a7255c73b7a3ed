"""Protobuf messages as rows of Arrow, and back, with the types and nulls of Spark's functions.

PySpark contains neither `spark-protobuf` nor protobuf's Java classes, so this is Python. As with
`from_protobuf`, enums are names, well-known timestamps and durations are times and intervals, and
a field that is not set is null, including a field of proto3 that has its default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.message_factory import GetMessageClass

from firesteel.errors import FiresteelError

_US, _NS_OF_US = 1_000_000, 1_000
_TIMESTAMP, _DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
_KINDS = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int32(),  # as in Spark and Java, the same bits
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.int64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}
_UNSIGNED = {FieldDescriptor.CPPTYPE_UINT32: 32, FieldDescriptor.CPPTYPE_UINT64: 64}


class _Field(NamedTuple):
    descriptor: FieldDescriptor
    kind: pa.DataType
    read: Callable[[Any], Any]  # of a single value


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFile:
    """A file that declares messages."""

    name: str  # its path in imports
    descriptor: bytes = field(repr=False)  # a FileDescriptorProto
    imports: tuple[MessageFile, ...]


class ProtobufRows:
    """Messages of one type."""

    def __init__(self, message: str, descriptors: bytes) -> None:
        """`descriptors` is a FileDescriptorSet. Raises FiresteelError."""
        self.descriptor = _descriptor(message, descriptors)
        self._class = GetMessageClass(self.descriptor)
        self._fields = _fields(self.descriptor, ())
        self.schema = pa.schema([pa.field(f.descriptor.name, f.kind) for f in self._fields])

    @property
    def name(self) -> str:
        """The full name of the message."""
        return str(self.descriptor.full_name)

    @property
    def file(self) -> MessageFile:
        """The file that declares the message."""
        return _file(self.descriptor.file)

    @property
    def indexes(self) -> list[int]:
        """The place of the message in its file: its index, after those of the messages that
        contain it, the outermost first.
        """
        found: list[int] = []
        inner: Descriptor | None = self.descriptor
        while inner is not None:
            outer = inner.containing_type
            siblings = (
                inner.file.message_types_by_name.values() if outer is None else outer.nested_types
            )
            found.insert(0, [each.full_name for each in siblings].index(inner.full_name))
            inner = outer
        return found

    def rows(self, values: Iterable[bytes]) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Returns one row for each value, and why values are not messages, by index; their rows
        are nulls.
        """
        messages: list[Any] = []
        errors: dict[int, str] = {}
        for index, value in enumerate(values):
            message = self._class()
            try:
                message.ParseFromString(value)
            except DecodeError as error:
                errors[index] = f"not a message {self.descriptor.full_name} ({error})"
                message = self._class()
            messages.append(message)
        columns = [
            pa.array([_value(field, message) for message in messages], field.kind)
            for field in self._fields
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema), errors

    def values(self, batch: pa.RecordBatch) -> list[bytes]:
        """Returns a message for each row. Raises FiresteelError that names the field of a value
        that does not fit.
        """
        found = []
        for row in batch.to_pylist():
            message = self._class()
            _fill(message, row)
            try:
                found.append(message.SerializeToString(deterministic=True))
            except EncodeError as error:
                raise FiresteelError(f"{self.descriptor.full_name}: {error}") from None
        return found

    def check(self, names: Iterable[str]) -> None:
        """Raises FiresteelError unless the message has a field for each column."""
        known = [field.descriptor.name for field in self._fields]
        for name in names:
            if name not in known:
                raise FiresteelError(
                    f"the message {self.descriptor.full_name} has no field {name!r}; it has: "
                    f"{', '.join(known)}"
                )


def _file(file: FileDescriptor) -> MessageFile:
    return MessageFile(
        name=file.name,
        descriptor=file.serialized_pb,
        imports=tuple(_file(each) for each in file.dependencies),
    )


def _descriptor(message: str, descriptors: bytes) -> Descriptor:
    pool = DescriptorPool()
    try:
        files = {file.name: file for file in FileDescriptorSet.FromString(descriptors).file}
    except DecodeError:
        raise FiresteelError(
            "Protobuf: descriptors is not a descriptor set; make one with protoc"
            " --include_imports --descriptor_set_out=FILE"
        ) from None
    added: set[str] = set()

    def add(name: str) -> None:
        file = files.get(name)
        if file is None:
            raise FiresteelError(
                f"Protobuf: the descriptor set lacks {name}; make it with protoc --include_imports"
            )
        if name not in added:
            added.add(name)
            for needed in file.dependency:
                add(needed)
            pool.Add(file)  # type: ignore[no-untyped-call]

    for name in files:
        add(name)
    try:
        found: Descriptor = pool.FindMessageTypeByName(message)  # type: ignore[no-untyped-call]
        return found
    except KeyError:
        known = [
            ".".join(filter(None, (file.package, kind.name)))
            for file in files.values()
            for kind in file.message_type
        ]
        raise FiresteelError(
            f"Protobuf: the descriptor set has no message {message!r}; it has: {', '.join(known)}"
        ) from None


def _fields(descriptor: Descriptor, outer: tuple[str, ...]) -> list[_Field]:
    if descriptor.full_name in outer:
        raise FiresteelError(
            f"Protobuf: the message {descriptor.full_name} contains itself, for which there is no"
            " type; read it as Raw()"
        )
    return [_field(field, (*outer, descriptor.full_name)) for field in descriptor.fields]


def _field(field: FieldDescriptor, outer: tuple[str, ...]) -> _Field:
    if _is_map(field):
        key, value = (_field(part, outer) for part in field.message_type.fields)

        def entries(found: Mapping[Any, Any]) -> Any:
            return [(key.read(name), value.read(found[name])) for name in found]

        return _Field(field, pa.map_(key.kind, value.kind), entries)
    single = _single(field, outer)
    if not field.is_repeated:
        return single
    read = single.read
    kind = pa.list_(pa.field("element", single.kind, nullable=False))
    return _Field(field, kind, lambda found: [read(each) for each in found])


def _single(field: FieldDescriptor, outer: tuple[str, ...]) -> _Field:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_MESSAGE:
        name = field.message_type.full_name
        if name == _TIMESTAMP:
            return _Field(field, pa.timestamp("us", "UTC"), _microseconds)
        if name == _DURATION:
            return _Field(field, pa.duration("us"), _microseconds)
        parts = _fields(field.message_type, outer)

        def struct(message: Any) -> dict[str, Any]:
            return {part.descriptor.name: _value(part, message) for part in parts}

        members = [pa.field(part.descriptor.name, part.kind) for part in parts]
        return _Field(field, pa.struct(members), struct)
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        names = field.enum_type.values_by_number

        def enum(number: int) -> str:
            known = names.get(number)
            return known.name if known is not None else str(number)

        return _Field(field, pa.string(), enum)
    if kind == FieldDescriptor.CPPTYPE_STRING:
        is_text = field.type == FieldDescriptor.TYPE_STRING
        return _Field(field, pa.string() if is_text else pa.binary(), _same)
    if (bits := _UNSIGNED.get(kind)) is not None:
        half = 1 << (bits - 1)
        return _Field(field, _KINDS[kind], lambda number: (number + half) % (2 * half) - half)
    return _Field(field, _KINDS[kind], _same)


def _value(field: _Field, message: Any) -> Any:
    """Returns the field's value; None if it is not set."""
    descriptor = field.descriptor
    found = getattr(message, descriptor.name)
    if not descriptor.is_repeated:
        if descriptor.has_presence:
            if not message.HasField(descriptor.name) and not descriptor.has_default_value:
                return None
        elif found == descriptor.default_value:
            return None
    return field.read(found)


def _fill(message: Any, row: Mapping[str, Any]) -> None:
    fields = message.DESCRIPTOR.fields_by_name
    for name, value in row.items():
        if value is None:
            continue
        field = fields.get(name)
        if field is None:
            raise FiresteelError(
                f"the message {message.DESCRIPTOR.full_name} has no field {name!r}"
            )
        try:
            _set(message, field, value)
        except (TypeError, ValueError, AttributeError) as error:
            raise FiresteelError(
                f"the value {value!r} does not fit the field {field.full_name}: {error}"
            ) from None


def _set(message: Any, field: FieldDescriptor, value: Any) -> None:
    target = getattr(message, field.name)
    is_message = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
    if _is_map(field):
        item = field.message_type.fields_by_name["value"]
        for key, each in value:
            if item.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                _fill_message(target[key], each)
            else:
                target[key] = _plain(item, each)
    elif field.is_repeated:
        for each in value:
            if is_message:
                _fill_message(target.add(), each)
            else:
                target.append(_plain(field, each))
    elif is_message:
        target.SetInParent()
        _fill_message(target, value)
    else:
        setattr(message, field.name, _plain(field, value))


def _fill_message(message: Any, value: Any) -> None:
    if message.DESCRIPTOR.full_name == _TIMESTAMP:
        message.FromDatetime(value)
    elif message.DESCRIPTOR.full_name == _DURATION:
        message.FromTimedelta(value)
    else:
        _fill(message, value)


def _plain(field: FieldDescriptor, value: Any) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        known = field.enum_type.values_by_name.get(value)
        if known is None:
            raise ValueError(f"known: {', '.join(field.enum_type.values_by_name)}")
        return known.number
    if (bits := _UNSIGNED.get(field.cpp_type)) is not None:
        return value % (1 << bits)
    return value


def _is_map(field: FieldDescriptor) -> bool:
    kind = field.message_type
    return bool(field.is_repeated and kind is not None and kind.GetOptions().map_entry)


def _microseconds(message: Any) -> int:
    return int(message.seconds) * _US + int(message.nanos) // _NS_OF_US


def _same(value: Any) -> Any:
    return value
