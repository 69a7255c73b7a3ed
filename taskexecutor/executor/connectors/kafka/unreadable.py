"""Texts about unreadable records, for users."""

from __future__ import annotations

_LONGEST = 200  # characters of a record


def shown(value: bytes | None) -> str:
    """Returns a record as text, shortened; bytes that are not UTF-8 as in Python."""
    if value is None:
        return "null"
    head = value[: 4 * _LONGEST]
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3 or len(head) == len(value):
            text = repr(head)
        else:  # the cut is inside a character
            text = head[: error.start].decode()
    text = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    if len(text) > _LONGEST or len(head) < len(value):
        return f"{text[:_LONGEST]}... ({len(value)} bytes)"
    return text
