"""Hides secrets of a configuration before it is shown."""

from __future__ import annotations

import re
from collections.abc import Mapping

from firesteel.common.config.options import OPTIONS

REDACTED = "******"
# Of keys without an option, such as `spark.hadoop.fs.s3a.secret.key`.
_SENSITIVE = re.compile(
    r"password|passwd|secret|token|credential|api-?key|access[._-]?key|account[._-]?key|jaas",
    re.IGNORECASE,
)
_USER_INFO = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*(?=@)")  # of a URL: user:password


def redacted(values: Mapping[str, str]) -> dict[str, str]:
    """Returns the values with REDACTED in the place of secrets, and of passwords in URLs."""
    return {
        key: REDACTED if _secret(key) else _USER_INFO.sub(REDACTED, value)
        for key, value in values.items()
    }


def _secret(key: str) -> bool:
    option = OPTIONS.get(key)
    return option.secret if option is not None else _SENSITIVE.search(key) is not None
