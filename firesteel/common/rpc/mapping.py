"""Maps domain types to messages and back: field by field, by name.

    VERTEX = Wire(JobVertex, job_graph_pb2.JobVertex)
    message = VERTEX.encode(vertex)
    vertex = VERTEX.decode(message)

Both functions are compiled at first use, from the type hints of the dataclass or NamedTuple and the
descriptor of the message. They are as fast as converters written by hand:

    def converter(x): return M(vertex_id=x.vertex_id, operators=e_operators(x.operators), ...)
    def converter(m): return D(vertex_id=m.vertex_id, operators=d_operators(m.operators), ...)

A field that only one side has raises TypeError at that time, unless the Wire names it: `context`
are domain fields that the caller of `decode` adds as keywords; `unmapped` are fields of the message
that the domain does not use. tests/unit/test_mapping.py compiles every Wire and Envelope.

    hint of the domain's field               field of the message
    ---------------------------------------  ----------------------------------------------------
    str, bytes, bool, int, float, NewType    the same scalar
    Enum                                     an enum or integer (the value), a string (the name)
    dataclass, NamedTuple                    a message, mapped in the same way
    X | None                                 an `optional` scalar, or a message
    tuple, Sequence, list, frozenset         repeated
    Mapping, dict, tuple of pairs            a map, decoded in the order of its keys
    tuple[X, Y]                              a message of two scalars, in this order
    a container within a container           a message whose only field is the inner container
    Any; a class with to_json and from_json  a string of JSON; of Any, None is empty
    X | Y, dataclasses                       a oneof of the same name, of messages named X and Y

Any other type needs a Codec, for a hint (`register`) or for one field (`codecs`).

An Envelope maps each member of a union to a kind of a message with a oneof. Fields that the message
of the kind lacks are read from and written to the envelope, beside the oneof.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from operator import attrgetter, itemgetter
from types import MappingProxyType, NoneType, UnionType
from typing import (
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from google.protobuf.descriptor import FieldDescriptor, OneofDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from firesteel.common.rpc.errors import RemoteProtocolError

T = TypeVar("T")
M = TypeVar("M", bound=Message)
Descriptor: TypeAlias = Any  # the class in use is not the one in the stubs


class Codec(NamedTuple):
    """Converts the value of a field; None: the value is the same on both sides."""

    encode: Callable[[Any], Any] | None = None
    decode: Callable[[Any], Any] | None = None


_SAME = Codec()
_CODECS: dict[Any, Codec] = {}
_WIRES: dict[tuple[type, str], Wire[Any, Any]] = {}
_ENVELOPES: list[Envelope[Any, Any]] = []
_SEQUENCES: dict[Any, Callable[[Any], Any]] = {
    tuple: tuple,
    Sequence: tuple,
    list: list,
    frozenset: frozenset,
}
_SCALARS = {
    FieldDescriptor.TYPE_STRING: str,
    FieldDescriptor.TYPE_BYTES: bytes,
    FieldDescriptor.TYPE_BOOL: bool,
    FieldDescriptor.TYPE_DOUBLE: float,
    FieldDescriptor.TYPE_INT32: int,
    FieldDescriptor.TYPE_INT64: int,
    FieldDescriptor.TYPE_UINT32: int,
    FieldDescriptor.TYPE_FIXED64: int,
}


def register(hint: Any, codec: Codec) -> None:
    """Converts the values of all fields with this type hint."""
    _CODECS[hint] = codec


def declared() -> Iterator[Wire[Any, Any] | Envelope[Any, Any]]:
    """Everything that the imported modules map."""
    yield from _WIRES.values()
    yield from _ENVELOPES


class Kind(NamedTuple):
    """A domain type, with the exceptions in its mapping."""

    domain: type
    unmapped: Sequence[str] = ()
    codecs: Mapping[str, Codec] = MappingProxyType({})


class Wire(Generic[T, M]):
    """A dataclass or NamedTuple and its message."""

    def __init__(
        self,
        domain: type[T],
        message: type[M],
        *,
        context: Sequence[str] = (),
        unmapped: Sequence[str] = (),
        codecs: Mapping[str, Codec] = MappingProxyType({}),
    ) -> None:
        self.message, self.context = message, context
        self.kind = Kind(domain, unmapped, codecs)
        if _WIRES.setdefault((domain, message.DESCRIPTOR.full_name), self) is not self:
            raise TypeError(f"{domain.__name__} is already mapped to {message.DESCRIPTOR.name}")

    @cached_property
    def encode(self) -> Callable[[T], M]:
        names = self._fields.names | {"M": self.message}
        encode: Callable[[T], M] = _function("x", f"M({self._fields.encoded['m']})", names)
        return encode

    @cached_property
    def decode(self) -> Callable[Concatenate[M, ...], T]:
        """Raises RemoteProtocolError for a value that the domain does not have."""
        parameters = ", ".join(("m", *self.context))
        decode: Callable[Concatenate[M, ...], T] = _function(
            parameters, self._fields.decoded, self._fields.names
        )
        return decode

    @cached_property
    def _fields(self) -> _Fields:
        return _Fields(self.kind, {"m": self.message.DESCRIPTOR}, self.context)


class Envelope(Generic[T, M]):
    """A union of domain types and the message that carries any of them in its oneof, `message`.

    `kinds` is keyed by the oneof's fields. Messages with one of `others` are decoded to None: the
    caller handles or ignores them. `given` are fields of the envelope or of its content that the
    caller of `encode` adds as keywords.
    """

    def __init__(
        self,
        message: type[M],
        kinds: Mapping[str, type | Kind],
        *,
        others: Sequence[str] = (),
        context: Sequence[str] = (),
        given: Sequence[str] = (),
    ) -> None:
        self.message, self.context, self.given = message, context, given
        self.kinds = {k: v if isinstance(v, Kind) else Kind(v) for k, v in kinds.items()}
        self.others = others
        _ENVELOPES.append(self)

    def encode(self, value: T, **given: Any) -> M:
        encode = self.encoders.get(type(value))
        if encode is None:
            raise TypeError(f"{value} does not belong in a {self.message.DESCRIPTOR.name}")
        return encode(value, **given)

    def decode(self, message: M, **context: Any) -> T:
        """Raises RemoteProtocolError for a message of no kind, or of one that is not mapped."""
        kind = message.WhichOneof("message")
        if kind is None:
            raise _unexpected(self.message.DESCRIPTOR, "message")
        return self.decoders[kind](message, **context)

    @cached_property
    def encoders(self) -> dict[type, Callable[..., M]]:
        encoders: dict[type, Callable[..., M]] = {}
        for name, fields in self._fields.items():
            content = GetMessageClass(self.message.DESCRIPTOR.fields_by_name[name].message_type)
            names = fields.names | {"M": self.message, "C": content}
            result = f"M({name}=C({fields.encoded['m']}), {fields.encoded['v']})"
            parameters = ", ".join(("x", *(f"{given}=None" for given in self.given)))
            encoders.setdefault(self.kinds[name].domain, _function(parameters, result, names))
        return encoders

    @cached_property
    def decoders(self) -> dict[str, Callable[..., T]]:
        parameters = ", ".join(("v", *self.context))
        decoders = {
            name: _function(parameters, fields.decoded, fields.names, f"m = v.{name}")
            for name, fields in self._fields.items()
        }
        return decoders | dict.fromkeys(self.others, lambda *_, **__: None)

    @cached_property
    def _fields(self) -> dict[str, _Fields]:
        whole: Descriptor = self.message.DESCRIPTOR
        found = {}
        for name, kind in self.kinds.items():
            sources = {"m": whole.fields_by_name[name].message_type, "v": whole}
            found[name] = _Fields(kind, sources, self.context, self.given)
        used = {*self.others, *self.kinds}.union(*(fields.used for fields in found.values()))
        if unmapped := set(whole.fields_by_name) - used:
            raise TypeError(f"{whole.name}: the fields {sorted(unmapped)} are not mapped")
        return found


class _Fields:
    """The arguments of both constructors as source text, and the names that occur in them.

    `sources` are the messages that hold the fields, by the variable that refers to them. Every
    field of the first one, "m", is mapped.
    """

    def __init__(
        self,
        kind: Kind,
        sources: Mapping[str, Descriptor],
        context: Sequence[str],
        given: Sequence[str] = (),
    ) -> None:
        domain, unmapped, codecs = kind
        self.names: dict[str, Any] = {"D": domain}
        self.used = {*unmapped}
        encoded: dict[str, list[str]] = {variable: [] for variable in sources}
        decoded = []
        for name, hint in get_type_hints(domain).items():
            if name in context:
                decoded.append(f"{name}={name}")
                continue
            variable = next((v for v in sources if _has(sources[v], name)), "")
            if not variable:
                raise TypeError(f"{sources['m'].name} has no field for {domain.__name__}.{name}")
            message = sources[variable]
            there = f"{variable}.{name}"
            if (field := message.fields_by_name.get(name)) is None:
                oneof = message.oneofs_by_name[name]
                self.used.update(kind.name for kind in oneof.fields)
                codec = _oneof(hint, oneof)
                encode, there = f"**e_{name}(x.{name})", variable
            else:
                self.used.add(name)
                codec = codecs.get(name) or _codec(hint, field)
                encode = f"{name}=e_{name}(x.{name})" if codec.encode else f"{name}=x.{name}"
            decode = f"d_{name}({there})" if codec.decode else there
            if field is not None and field.has_presence and _optional(hint):
                encode = encode.replace("=", f"=None if x.{name} is None else ", 1)
                decode = f"{decode} if {variable}.HasField({name!r}) else None"
            self.names |= {f"e_{name}": codec.encode, f"d_{name}": codec.decode}
            encoded[variable].append(encode)
            decoded.append(decode if issubclass(domain, tuple) else f"{name}={decode}")
        for name, (variable, message) in itertools.product(given, sources.items()):
            assigned = {argument.partition("=")[0] for argument in encoded[variable]}
            if name in message.fields_by_name and name not in assigned:
                self.used.add(name)
                encoded[variable].append(f"{name}={name}")
        if missing := {field.name for field in sources["m"].fields} - self.used:
            raise TypeError(
                f"{domain.__name__} has no field for {sources['m'].name}.{min(missing)}"
            )
        self.encoded = {variable: ", ".join(values) for variable, values in encoded.items()}
        self.decoded = f"D({', '.join(decoded)})"


def _function(parameters: str, result: str, names: dict[str, Any], before: str = "pass") -> Any:
    exec(f"def converter({parameters}): {before}; return {result}", names)
    return names["converter"]


def _has(message: Descriptor, name: str) -> bool:
    return name in message.fields_by_name or name in message.oneofs_by_name


def _optional(hint: Any) -> Any:
    """X of the hint `X | None`; None for any other hint."""
    if get_origin(hint) not in (Union, UnionType):
        return None
    kinds = {*get_args(hint)} - {NoneType}
    return kinds.pop() if len(kinds) == 1 else None


def _codec(hint: Any, field: FieldDescriptor) -> Codec:
    """Converts the whole value of a field."""
    if hint in _CODECS:
        return _CODECS[hint]
    if (inner := _optional(hint)) is not None:
        if not field.has_presence:
            raise TypeError(f"{field.full_name} must be `optional`, because it may be None")
        hint = inner
    elif field.has_presence and field.message_type is None:
        raise TypeError(f"{field.full_name} must not be `optional`: {hint} is never None")
    if not field.is_repeated:
        return _value(hint, field)
    of = get_args(hint)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        pairs = get_origin(hint) is tuple
        key_hint, value_hint = get_args(of[0]) if pairs else of
        key = _value(key_hint, field.message_type.fields_by_name["key"])
        value = _value(value_hint, field.message_type.fields_by_name["value"])
        return _map(key, value, tuple if pairs else dict)
    make = _SEQUENCES[get_origin(hint)]
    encode, decode = _value(of[0], field)
    return Codec(
        encode and (lambda values: [encode(value) for value in values]),
        make if decode is None else lambda values: make(map(decode, values)),
    )


def _map(key: Codec, value: Codec, make: Callable[[Any], Any]) -> Codec:
    encode_key, encode = (codec.encode or _identity for codec in (key, value))
    decode_key, decode = (codec.decode or _identity for codec in (key, value))
    if key == value == _SAME:
        return Codec(dict, lambda values: make(sorted(values.items())))
    return Codec(
        lambda values: {encode_key(k): encode(v) for k, v in dict(values).items()},
        lambda values: make(
            (decode_key(k), decode(v)) for k, v in sorted(values.items(), key=_key)
        ),
    )


_key = itemgetter(0)


def _identity(value: Any) -> Any:
    return value


def _value(hint: Any, field: FieldDescriptor) -> Codec:
    """Converts one value, also of a repeated field."""
    hint = getattr(hint, "__supertype__", hint)  # of a NewType
    if hint in _CODECS:
        return _CODECS[hint]
    if field.message_type is not None:
        return _message(hint, field.message_type)
    if hint is _SCALARS.get(field.type):
        return _SAME
    text = field.type == FieldDescriptor.TYPE_STRING
    if hint is Any and text:
        return Codec(
            lambda value: "" if value is None else json.dumps(value),
            lambda value: json.loads(value) if value else None,
        )
    if isinstance(hint, type) and issubclass(hint, Enum):
        members = _Members(hint, field, attrgetter("name" if text else "value"))
        return Codec(members.wire, members.__getitem__)
    if hasattr(hint, "from_json") and text:
        return Codec(hint.to_json, hint.from_json)
    raise TypeError(f"{field.full_name} does not hold {hint}")


class _Members(dict[Any, Enum]):
    """The members of an Enum by what stands for them in a message."""

    def __init__(self, kind: type[Enum], field: FieldDescriptor, wire: attrgetter[Any]) -> None:
        super().__init__({wire(member): member for member in kind})
        self.wire = wire
        self._name, self._field = kind.__name__, field

    def __missing__(self, value: object) -> Enum:
        where = f"{self._field.containing_type.name}.{self._field.name}"
        raise RemoteProtocolError(f"{where}: {value!r} is not a value of {self._name}")


def _message(hint: Any, descriptor: Descriptor) -> Codec:
    if get_origin(hint) is None:
        wire: Wire[Any, Any] = _WIRES.get((hint, descriptor.full_name)) or Wire(
            hint, GetMessageClass(descriptor)
        )
        return Codec(wire.encode, wire.decode)
    message, names = GetMessageClass(descriptor), [field.name for field in descriptor.fields]
    if len(names) == 1:
        name = names[0]
        encode, decode = _codec(hint, descriptor.fields[0])
        encode, decode = encode or _identity, decode or _identity
        return Codec(
            lambda value: message(**{name: encode(value)}),
            lambda value: decode(getattr(value, name)),
        )
    codecs = [
        _codec(of, field) for of, field in zip(get_args(hint), descriptor.fields, strict=True)
    ]
    if any(codec != _SAME for codec in codecs):
        raise TypeError(f"{descriptor.full_name}: a tuple of scalars is expected, not {hint}")
    return Codec(lambda value: message(**dict(zip(names, value, strict=True))), attrgetter(*names))


def _oneof(hint: Any, oneof: OneofDescriptor) -> Codec:
    fields = {field.message_type.name: field for field in oneof.fields}
    kinds = {kind: fields.pop(kind.__name__) for kind in get_args(hint)}
    if fields:
        raise TypeError(f"{hint} has no type {min(fields)}, as {oneof.full_name} has")
    codecs: list[Any] = [(k, f.name, _message(k, f.message_type)) for k, f in kinds.items()]
    encoders = {kind: (name, encode) for kind, name, (encode, _) in codecs}
    decoders = {name: decode for _, name, (_, decode) in codecs}

    def encode(value: Any) -> dict[str, Any]:
        name, convert = encoders[type(value)]
        return {name: convert(value)}

    def decode(message: Any) -> Any:
        kind = message.WhichOneof(oneof.name)
        if kind is None:
            raise _unexpected(message.DESCRIPTOR, oneof.name)
        return decoders[kind](getattr(message, kind))

    return Codec(encode, decode)


def _unexpected(message: Descriptor, oneof: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"{message.name} without a {oneof}, or with one of an unknown kind")
