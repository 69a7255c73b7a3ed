"""Keys of jobs, with which processes prove to each other that they work for the same job.

The key of a job is derived from a secret of the cluster, so every TaskExecutor knows it. A slot
gets the key of its job and no other credential. With it, it signs a token for each stream that it
opens: it can read the partitions of its own job, and nothing else.

Slots import this module: it needs the standard library alone.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import TypeAlias

from firesteel.errors import FiresteelError

KeyOfJob: TypeAlias = Callable[[str], bytes | None]
"""Returns the key of a job by its id; None: this process does not know the job."""
VALID_S = 300.0  # a token opens one stream, immediately


class InvalidJobToken(FiresteelError):
    """The peer has not proved that it works for the job."""


def derive(secret: bytes, job_id: str) -> bytes:
    """Returns the key of a job."""
    return hmac.digest(secret, b"job " + job_id.encode(), hashlib.sha256)


def sign(key: bytes, job_id: str, *, now_s: float) -> str:
    """Returns a token of the job, valid for `VALID_S`."""
    expires_s = int(now_s + VALID_S)
    return f"{expires_s}.{_mac(key, job_id, expires_s)}"


def verify(token: str, key: bytes | None, job_id: str, *, now_s: float) -> None:
    """Raises InvalidJobToken."""
    expires, _, mac = token.partition(".")
    valid = key is not None and expires.isascii() and expires.isdecimal() and len(expires) < 16
    if not valid or not hmac.compare_digest(
        mac.encode(), _mac(key or b"", job_id, int(expires)).encode()
    ):
        raise InvalidJobToken(f"the caller has not proved that it works for the job {job_id}")
    if int(expires) <= now_s:
        raise InvalidJobToken(
            f"the caller's token for the job {job_id} has expired; the clocks of the machines may"
            " differ"
        )


def _mac(key: bytes, job_id: str, expires_s: int) -> str:
    content = f"{job_id} {expires_s}".encode()
    return hmac.digest(key, content, hashlib.sha256).hex()
