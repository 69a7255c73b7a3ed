"""Maps domain types to messages and back: field by field, by name.

    VERTEX = Wire(JobVertex, job_graph_pb2.JobVertex)
    message = VERTEX.encode(vertex)
    vertex = VERTEX.decode(message)

Both functions are compiled at first use, or by `compile_all`, from the type hints of the dataclass
or NamedTuple and the descriptor of the message. They are as fast as converters written by hand:

    def converter(x): return M(vertex_id=x.vertex_id, operators=[f1(v) for v in x.operators], ...)
    def converter(m): return D(vertex_id=m.vertex_id, operators=tuple(map(f2, m.operators)), ...)

A field that only one side has raises TypeError at that time, unless the declaration names it:
`context` are domain fields that the caller of `decode` adds as keywords; `given` are fields of the
message that the caller of `encode` adds; `unmapped` are fields of the message that the domain does
not use. tests/unit/test_mapping.py compiles every declaration.

    hint of the domain's field               field of the message
    ---------------------------------------  ----------------------------------------------------
    str, bytes, bool, int, float, NewType    the same scalar
    Enum                                     an enum or integer (the value), a string (the name)
    dataclass, NamedTuple                    a message, mapped in the same way
    X | None                                 an `optional` scalar, or a message
    tuple, Sequence, list, frozenset         repeated
    Mapping, dict, tuple of pairs            a map, decoded in the order of its keys
    a container within a container           a message whose only field is the inner container
    X | Y, dataclasses                       a oneof of the same name, of messages named X and Y

Any other type needs a Codec, for a hint (`register`) or for one field (`codecs`).

A View only encodes, from the attributes and properties that the message has fields for. An Envelope
maps each member of a union to a kind of a message with a oneof. Fields that the message of the kind
lacks are read from and written to the envelope, beside the oneof.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType, NoneType, UnionType
from typing import (
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from firesteel.common.rpc.errors import RemoteProtocolError

T = TypeVar("T")
M = TypeVar("M", bound=Message)


class Codec(NamedTuple):
    """Converts the value of a field; None: the value is the same on both sides."""

    encode: Callable[[Any], Any] | None = None
    decode: Callable[[Any], Any] | None = None


_CODECS: dict[Any, Codec] = {}
VIEWS: dict[tuple[type, str], View[Any, Any]] = {}
ENVELOPES: list[Envelope[Any, Any]] = []
_SEQUENCES = {tuple: "tuple", Sequence: "tuple", list: "list", frozenset: "frozenset"}
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


class Kind(NamedTuple):
    """A domain type, with the exceptions in its mapping."""

    domain: type
    unmapped: Sequence[str] = ()
    codecs: Mapping[str, Codec] = MappingProxyType({})


_BUILDING = threading.RLock()  # one for all converters, since each builds those that it calls


class _built_once(Generic[T]):
    """A property that the first access computes.

    In Python 3.11, `functools.cached_property` has a lock per property: two threads that need two
    of them in opposite order wait for each other forever.
    """

    def __init__(self, build: Callable[[Any], T]) -> None:
        self._build = build
        self._name = build.__name__

    def __get__(self, instance: Any, owner: type) -> T:
        with _BUILDING:
            if self._name not in vars(instance):
                vars(instance)[self._name] = self._build(instance)
        return vars(instance)[self._name]  # type: ignore[no-any-return]


class View(Generic[T, M]):
    """An object and a message that describes a part of it."""

    def __init__(
        self,
        domain: type[T],
        message: type[M],
        *,
        context: Sequence[str] = (),
        given: Sequence[str] = (),
        unmapped: Sequence[str] = (),
        codecs: Mapping[str, Codec] = MappingProxyType({}),
    ) -> None:
        self.message, self.context, self.given = message, context, given
        self.kind = Kind(domain, unmapped, codecs)
        if VIEWS.setdefault((domain, message.DESCRIPTOR.full_name), self) is not self:
            raise TypeError(f"{domain.__name__} is already mapped to {message.DESCRIPTOR.name}")

    @_built_once
    def encode(self) -> Callable[Concatenate[T, ...], M]:
        result = f"{self._fields.name(self.message)}({self._fields.encoded['m']})"
        return self._fields.function(("x", *(f"{name}=None" for name in self.given)), result)

    @_built_once
    def _fields(self) -> _Fields:
        whole = isinstance(self, Wire)
        return _Fields(self.kind, {"m": self.message}, self.context, self.given, whole=whole)


class Wire(View[T, M]):
    """A dataclass or NamedTuple and its message."""

    @_built_once
    def decode(self) -> Callable[Concatenate[M, ...], T]:
        """Raises RemoteProtocolError for a value that the domain does not have."""
        return self._fields.function(("m", *self.context), self._fields.decoded)


class Envelope(Generic[T, M]):
    """A union of domain types and the message that carries any of them in its oneof, `message`.

    `kinds` is keyed by the oneof's fields. Messages with one of `others` are decoded to None: the
    caller handles or ignores them. `given` may be fields of the envelope or of its content.
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
        ENVELOPES.append(self)

    def encode(self, value: T, **given: Any) -> M:
        encode = self.encoders.get(type(value))
        if encode is None:
            raise TypeError(f"{value} does not belong in a {self.message.DESCRIPTOR.name}")
        return encode(value, **given)

    def decode(self, message: M, **context: Any) -> T:
        """Raises RemoteProtocolError for a message of no kind, or of one that is not mapped."""
        decoded: T = self.decoders[message.WhichOneof("message")](message, **context)
        return decoded

    @_built_once
    def encoders(self) -> dict[type, Callable[..., M]]:
        encoders: dict[type, Callable[..., M]] = {}
        parameters = ("x", *(f"{name}=None" for name in self.given))
        for name, fields in self._fields.items():
            content = f"{fields.name(fields.sources['m'])}({fields.encoded['m']})"
            result = f"{fields.name(self.message)}({name}={content}, {fields.encoded['v']})"
            encoders.setdefault(fields.domain, fields.function(parameters, result))
        return encoders

    @_built_once
    def decoders(self) -> _Table:
        decoders = {
            name: fields.function(("v", *self.context), fields.decoded, f"m = v.{name}")
            for name, fields in self._fields.items()
        }
        ignored = dict.fromkeys(self.others, lambda *_, **__: None)
        return _kinds(self.message.DESCRIPTOR, "message", decoders | ignored)

    @_built_once
    def _fields(self) -> dict[str, _Fields]:
        whole, fields = self.message.DESCRIPTOR, {}
        for name, kind in self.kinds.items():
            content = GetMessageClass(whole.fields_by_name[name].message_type)
            sources: dict[str, type[Message]] = {"m": content, "v": self.message}
            fields[name] = _Fields(kind, sources, self.context, self.given)
        used = {*self.others, *self.kinds}.union(*(each.used for each in fields.values()))
        if unmapped := set(whole.fields_by_name) - used:
            raise TypeError(f"{whole.name}: the fields {sorted(unmapped)} are not mapped")
        return fields


def compile_all() -> None:
    """Compiles all declarations that have been imported, so that no message waits for it."""
    for view in tuple(VIEWS.values()):
        _ = view.encode
        if isinstance(view, Wire):
            _ = view.decode
    for envelope in tuple(ENVELOPES):
        _ = envelope.encoders, envelope.decoders


class _Table(dict[Any, Any]):
    """A dict whose missing keys are faults of a peer."""

    def __init__(self, values: Mapping[Any, Any], fault: str) -> None:
        super().__init__(values)
        self._fault = fault

    def __missing__(self, key: object) -> Any:
        raise RemoteProtocolError(self._fault.format(key))


def _kinds(message: Any, oneof: str, values: Mapping[str, Any]) -> _Table:
    return _Table(values, f"{message.name} without a {oneof}, or with one of an unknown kind")


class _Text(NamedTuple):
    """Expressions that convert the value `@`."""

    encode: str = "@"
    decode: str = "@"

    def of(self, value: str) -> _Text:
        return _Text(self.encode.replace("@", value), self.decode.replace("@", value))


def _hints(domain: type, *, properties: bool) -> dict[str, Any]:
    hints = get_type_hints(domain)
    for name, attribute in inspect.getmembers(domain) if properties else ():
        if isinstance(attribute, property):
            hints[name] = get_type_hints(attribute.fget)["return"]
    return hints


def _optional(hint: Any) -> Any:
    """X of the hint `X | None`; None for any other hint."""
    kinds = {*get_args(hint)} if get_origin(hint) in (Union, UnionType) else set()
    return (kinds - {NoneType}).pop() if len(kinds) == 2 and NoneType in kinds else None


class _Fields:
    """The arguments of both constructors as source text, and the names that occur in them.

    `sources` are the messages that hold the fields, by the variable that refers to them. Every
    field of the first one, "m", is mapped. Unless `whole`, the domain may have other fields.
    """

    def __init__(
        self,
        kind: Kind,
        sources: Mapping[str, type[Message]],
        context: Sequence[str],
        given: Sequence[str],
        *,
        whole: bool = True,
    ) -> None:
        self.domain, unmapped, codecs = kind
        self.sources = sources
        self.used = {*unmapped}
        self._names: dict[str, Any] = {}
        encoded: dict[str, dict[str, str]] = {variable: {} for variable in sources}
        decoded: dict[str, str] = {}
        for name, hint in _hints(self.domain, properties=not whole).items():
            if name in context:
                decoded[name] = name
                continue
            if name in given:
                continue
            for variable, source in sources.items():
                if (field := source.DESCRIPTOR.fields_by_name.get(name)) is not None:
                    self.used.add(name)
                    codec = codecs.get(name)
                    encode, decode = self._codec(codec) if codec else self._field(hint, field)
                    if field.has_presence and _optional(hint):
                        encode = f"None if @ is None else {encode}"
                        decode = f"{decode} if {variable}.HasField({name!r}) else None"
                    encoded[variable][name] = f"{name}={encode}".replace("@", f"x.{name}")
                    decoded[name] = decode.replace("@", f"{variable}.{name}")
                    break
                if (oneof := source.DESCRIPTOR.oneofs_by_name.get(name)) is not None:
                    self.used.update(field.name for field in oneof.fields)
                    text = self._oneof(hint, oneof)
                    encoded[variable][name] = f"**{text.of(f'x.{name}').encode}"
                    decoded[name] = text.of(variable).decode
                    break
            else:
                if whole:
                    message = sources["m"].DESCRIPTOR.name
                    raise TypeError(f"{message} has no field for {self.domain.__name__}.{name}")
        for variable, source in sources.items():
            for name in {*given} & {*source.DESCRIPTOR.fields_by_name}:
                self.used.add(name)
                encoded[variable].setdefault(name, f"{name}={name}")
        message = sources["m"].DESCRIPTOR
        if missing := {field.name for field in message.fields} - self.used:
            field = f"{message.name}.{min(missing)}"
            raise TypeError(f"{self.domain.__name__} has no field for {field}")
        self.encoded = {variable: ", ".join(each.values()) for variable, each in encoded.items()}
        positional = issubclass(self.domain, tuple)  # faster
        arguments = (each if positional else f"{name}={each}" for name, each in decoded.items())
        self.decoded = f"{self.name(self.domain)}({', '.join(arguments)})"

    def name(self, value: Any) -> str:
        """Returns the name by which the functions refer to this value."""
        name = f"f{len(self._names)}"
        self._names[name] = value
        return name

    def function(
        self, parameters: Sequence[str], result: str, first: str = "pass"
    ) -> Callable[..., Any]:
        defined: dict[str, Callable[..., Any]] = {}
        text = f"def converter({', '.join(parameters)}): {first}; return {result}"
        exec(text, self._names, defined)
        return defined["converter"]

    def _codec(self, codec: Codec) -> _Text:
        return _Text(*(f"{self.name(convert)}(@)" if convert else "@" for convert in codec))

    def _field(self, hint: Any, field: Any) -> _Text:
        """Converts the whole value of a field."""
        if hint in _CODECS:
            return self._codec(_CODECS[hint])
        if (inner := _optional(hint)) is not None and not field.has_presence:
            raise TypeError(f"{field.full_name} must be `optional`, because it may be None")
        if inner is None and field.has_presence and field.message_type is None:
            raise TypeError(f"{field.full_name} must not be `optional`: {hint} is never None")
        if not field.is_repeated:
            return self._value(inner or hint, field)
        of, make = get_args(hint), _SEQUENCES.get(get_origin(hint))
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            of = get_args(of[0]) if make else of  # a tuple of pairs
            key, value = map(self._value, of, field.message_type.fields)
            key, value = key.of("k"), value.of("v")
            items = f"[({key.decode}, {value.decode}) for k, v in sorted(@.items())]"
            return _Text(
                f"{{{key.encode}: {value.encode} for k, v in dict(@).items()}}",
                f"{make or 'dict'}({items})",
            )
        encode, decode = self._value(of[0], field).of("v")
        if (function := decode.removesuffix("(v)")).isidentifier():
            decode = "@" if decode == "v" else f"map({function}, @)"
        else:
            decode = f"[{decode} for v in @]"
        return _Text("@" if encode == "v" else f"[{encode} for v in @]", f"{make}({decode})")

    def _value(self, hint: Any, field: Any) -> _Text:
        """Converts one value, also of a repeated field."""
        hint = getattr(hint, "__supertype__", hint)  # of a NewType
        if hint in _CODECS:
            return self._codec(_CODECS[hint])
        if (message := field.message_type) is not None:
            return self._message(hint, message)
        if hint is _SCALARS.get(field.type):
            return _Text()
        if isinstance(hint, type) and issubclass(hint, Enum):
            attribute = "_name_" if field.type == FieldDescriptor.TYPE_STRING else "_value_"
            where = f"{field.containing_type.name}.{field.name}"
            members = {getattr(member, attribute): member for member in hint}
            table = _Table(members, f"{where}: {{!r}} is not a value of {hint.__name__}")
            return _Text(f"@.{attribute}", f"{self.name(table)}[@]")
        raise TypeError(f"{field.full_name} does not hold {hint}")

    def _message(self, hint: Any, descriptor: Any) -> _Text:
        message = GetMessageClass(descriptor)
        if get_origin(hint) is not None:  # a container in a container
            (field,) = descriptor.fields
            encode, decode = self._field(hint, field)
            encode = f"{self.name(message)}({field.name}={encode})"
            return _Text(encode, decode.replace("@", f"@.{field.name}"))
        view = VIEWS.get((hint, descriptor.full_name)) or Wire(hint, message)
        return self._codec(Codec(view.encode, view.decode if isinstance(view, Wire) else None))

    def _oneof(self, hint: Any, oneof: Any) -> _Text:
        fields = {field.message_type.name: field for field in oneof.fields}
        encoders, decoders = {}, {}
        for kind in get_args(hint):
            field = fields.pop(kind.__name__)
            encode, decode = self._message(kind, field.message_type).of("x")
            encoders[kind] = self.function("x", f"{{{field.name!r}: {encode}}}")
            decoders[field.name] = self.function("m", decode, f"x = m.{field.name}")
        if fields:
            raise TypeError(f"{hint} has no type {min(fields)}, as {oneof.full_name} has")
        kinds = _kinds(oneof.containing_type, oneof.name, decoders)
        return _Text(
            f"{self.name(encoders)}[type(@)](@)",
            f"{self.name(kinds)}[@.WhichOneof({oneof.name!r})](@)",
        )
