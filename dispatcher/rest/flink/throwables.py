"""Failures as Flink's Java clients read them: with a serialised Java exception.

The stream is that of java.io.ObjectOutputStream for an org.apache.flink.util.SerializedThrowable,
which Flink's clients cast to: https://docs.oracle.com/en/java/javase/17/docs/specs/serialization/protocol.html
Fields that the class description leaves out are null.
"""

from __future__ import annotations

import base64
import struct
from typing import Any

MAX_CHARS = 10_000  # of a message: a string of the stream has 65,535 bytes at most

_MAGIC = struct.pack(">HH", 0xACED, 5)
_NULL, _CLASS, _OBJECT, _STRING = b"\x70", b"\x72", b"\x73", b"\x74"
_END = b"\x78"  # of a class description, and of what writeObject writes
_SERIALIZABLE, _WRITES_ITSELF = 2, 3  # flags of a class

_EXCEPTION_NAME = "org.apache.flink.util.FlinkException"
_THROWABLE_UID = -3042686055658047285
_EXCEPTION_UID = -3387516993124229948
_SERIALIZED_THROWABLE_UID = 7284183123441947635


def failure_cause(message: str) -> dict[str, Any]:
    """Returns the failure of an operation, as the status of an asynchronous operation has it."""
    stack = f"{_EXCEPTION_NAME}: {_short(message)}\n"
    return {
        "class": _EXCEPTION_NAME,
        "stack-trace": stack,
        "serialized-throwable": base64.b64encode(serialized_throwable(message)).decode(),
    }


def serialized_throwable(message: str) -> bytes:
    """Returns a SerializedThrowable whose message and stack trace are `message`."""
    text = _short(message)
    stack = f"{_EXCEPTION_NAME}: {text}\n"
    return b"".join(
        (
            _MAGIC,
            _OBJECT,
            _class(
                "org.apache.flink.util.SerializedThrowable",
                _SERIALIZED_THROWABLE_UID,
                _SERIALIZABLE,
                ("fullStringifiedStackTrace", "originalErrorClassName"),
            ),
            _class("java.lang.Exception", _EXCEPTION_UID, _SERIALIZABLE, ()),
            _class("java.lang.Throwable", _THROWABLE_UID, _WRITES_ITSELF, ("detailMessage",)),
            _NULL,  # no further superclass
            _STRING + _utf(text) + _END,  # the fields, from the topmost class down
            _STRING + _utf(stack) + _STRING + _utf(_EXCEPTION_NAME),
        )
    )


def _class(name: str, uid: int, flags: int, fields: tuple[str, ...]) -> bytes:
    """Describes a class with fields that are strings, in the order of their names."""
    described = b"".join(
        b"L" + _utf(field) + _STRING + _utf("Ljava/lang/String;") for field in fields
    )
    header = struct.pack(">qBH", uid, flags, len(fields))
    return _CLASS + _utf(name) + header + described + _END


def _utf(text: str) -> bytes:
    """Encodes a string in Java's modified UTF-8, behind its length."""
    encoded = b"".join(map(_encoded, text))
    return struct.pack(">H", len(encoded)) + encoded


def _encoded(character: str) -> bytes:
    if character == "\0":
        return b"\xc0\x80"
    if ord(character) < 0x10000:
        return character.encode("utf-8", "surrogatepass")
    pair = character.encode("utf-16-be")  # each half as a separate character
    halves = (pair[:2], pair[2:])
    return b"".join(
        chr(int.from_bytes(half, "big")).encode("utf-8", "surrogatepass") for half in halves
    )


def _short(message: str) -> str:
    if len(message) <= MAX_CHARS:
        return message
    return message[:MAX_CHARS] + " ..."
