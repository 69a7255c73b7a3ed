"""Hides secrets before a configuration, a log line or an error is shown.

A process hides the secrets of its configuration once it has called `remember`, wherever they occur
in a text, and passwords and tokens that it recognises by their form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from firesteel.common.config.options import OPTIONS

REDACTED = "******"
# Matches keys without an option, such as `spark.hadoop.fs.s3a.secret.key`.
_SENSITIVE = re.compile(
    r"password|passwd|secret|token|credential|api-?key|access[._-]?key|account[._-]?key"
    r"|private[._-]?key|key[._-]pem|user[._-]info|authorization|jaas|(^|[._-])key$",
    re.IGNORECASE,
)
_USER_INFO = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*(?=@)")  # of a URL: user:password
_BEARER = re.compile(r"(?<=Bearer )[\w.~+/-]{16,}=*|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}")
# `password=x` in a DSN or a query, and `"secret": "x"` in JSON.
_ASSIGNED = re.compile(
    r"""(?i)((?:password|passwd|secret|token|api_?key|(?:access|private|secret)[._-]?key)(?:=|["']:\s?))"""
    r"""(?:"[^"]*"|'[^']*'|[^\s"'&,;)}\]]+)"""
)
_SHORTEST_CHARS = 6  # of values that are hidden wherever they occur

_remembered: set[str] = set()
_values = re.compile(r"(?!)")


def is_sensitive(key: str) -> bool:
    """Whether the value of a key is a secret."""
    option = OPTIONS.get(key)
    return option.secret if option is not None else _SENSITIVE.search(key) is not None


def redacted(values: Mapping[str, str]) -> dict[str, str]:
    """Returns the values with REDACTED in the place of secrets, and of passwords in URLs."""
    return {
        key: REDACTED if is_sensitive(key) else _USER_INFO.sub(REDACTED, value)
        for key, value in values.items()
    }


def remember(values: Mapping[str, str]) -> None:
    """Makes `hidden` hide the secrets among these values, in all threads of this process."""
    global _values
    _remembered.update(
        secret
        for key, value in values.items()
        for secret in _secrets_in(key, value)
        if len(secret) >= _SHORTEST_CHARS
    )
    longest_first = sorted(_remembered, key=len, reverse=True)
    _values = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def hidden(text: str) -> str:
    """Returns the text with REDACTED in the place of secrets."""
    text = _values.sub(REDACTED, text)
    text = _USER_INFO.sub(REDACTED, text)
    text = _BEARER.sub(REDACTED, text)
    return _ASSIGNED.sub(rf"\g<1>{REDACTED}", text)


def _secrets_in(key: str, value: str) -> Iterator[str]:
    if _SENSITIVE.search(key) and is_sensitive(key):
        yield value
        yield value.rpartition(":")[2]  # of digest:USER:PASSWORD
    for user_info in _USER_INFO.findall(value):
        password = user_info.partition(":")[2]
        yield password
        yield unquote(password)
