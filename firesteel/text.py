"""Text of user code, made valid for every message, log and job store."""

from __future__ import annotations

from typing import Any


def valid_text(text: str) -> str:
    r"""Returns `text` with escapes in place of lone surrogates, which UTF-8 cannot encode, and of
    NUL, which PostgreSQL cannot store: `\ud83d` and `\x00`.
    """
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def is_utf_8(text: str) -> bool:
    """Returns whether UTF-8 can encode the text: it has no lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def text_of(value: Any) -> str:
    """Returns `str(value)` as valid text, or, if that raises, the class of the value and the
    error.
    """
    try:
        return valid_text(str(value))
    except BaseException as error:  # user code may raise anything
        return f"<{type(value).__name__} without text: __str__ raised {type(error).__name__}>"


def clipped(text: str, limit_chars: int) -> str:
    """Cuts the middle out of a long text: the end of an error names the exception."""
    if len(text) <= limit_chars:
        return text
    half = limit_chars // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters omitted ...\n{text[-half:]}"
