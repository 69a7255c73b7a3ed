"""Decodes the objects that typed clients, such as Helm, send as protobuf: some kinds, with the
fields that clients set. The numbers are those of Kubernetes' generated.proto files.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

_MAGIC = b"k8s\x00"
_PACKAGE = "k8s"
_MESSAGES = {
    "TypeMeta": "1 apiVersion string, 2 kind string",
    "Unknown": "1 typeMeta TypeMeta, 2 raw bytes",
    "ObjectMeta": "1 name string, 2 generateName string, 3 namespace string, 5 uid string,"
    " 6 resourceVersion string, 11 labels string-map, 12 annotations string-map",
    "Namespace": "1 metadata ObjectMeta",
    "Secret": "1 metadata ObjectMeta, 2 data bytes-map, 3 type string, 4 stringData string-map",
    "DeleteOptions": "1 gracePeriodSeconds int32, 4 propagationPolicy string",
}
_TYPES = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int32": FieldDescriptorProto.TYPE_INT32,
}


def decoded(body: bytes) -> dict[str, Any] | None:
    """Returns the object in the body, as in JSON; None if it cannot be decoded."""
    if not body.startswith(_MAGIC):
        return None
    try:
        envelope = _class("Unknown").FromString(body.removeprefix(_MAGIC))
        kind = envelope.typeMeta.kind
        if kind not in _MESSAGES:
            return None
        found = json_format.MessageToDict(_class(kind).FromString(envelope.raw))
    except DecodeError:
        return None
    return {"apiVersion": envelope.typeMeta.apiVersion, "kind": kind} | found


def _class(name: str) -> Any:
    return GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def _pool() -> DescriptorPool:
    file = FileDescriptorProto(name="k8s.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for text in fields.split(", "):
            number, field_name, kind = text.split()
            field = message.field.add(name=field_name, json_name=field_name, number=int(number))
            field.label = FieldDescriptorProto.LABEL_OPTIONAL
            if kind.endswith("-map"):
                entry = message.nested_type.add(
                    name=f"{field_name[0].upper()}{field_name[1:]}Entry"
                )
                entry.options.map_entry = True
                for index, (part, type_) in enumerate((("key", "string"), ("value", kind[:-4])), 1):
                    entry.field.add(name=part, number=index, label=1, type=_TYPES[type_])
                field.label = FieldDescriptorProto.LABEL_REPEATED
                kind = f"{name}.{entry.name}"
            if kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type = FieldDescriptorProto.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
    pool = DescriptorPool()
    pool.Add(file)
    return pool


_POOL = _pool()
