"""Keys with which slots prove to each other that they work for the same job.

A key is derived from a secret of the cluster, the id of a job, the epoch of its JobMaster, and an
expiry: one of the times at which all TaskExecutors replace keys. So every TaskExecutor derives the
same keys. A slot gets those of its job and no other credential. With one of them, it signs a token
for each stream that it opens: it can read the partitions of this job, and nothing else.

    | window w           | w + 1              | w + 2              |
    ^ now                ^ expiry             ^ expiry, signs      ^ expiry

A slot has keys of three expiries, so that slots whose keys are replaced at different times, or
whose clocks differ, accept each other.

Slots import this module: it needs the standard library alone.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from firesteel.errors import FiresteelError

FindKey: TypeAlias = Callable[[str, int, int], bytes | None]
"""Returns the key of a job's id, an epoch and an expiry; None: this process has no such key. Raises
InvalidJobToken for an epoch of the past."""
WINDOW_S = 4 * 3600
VALID_S = 300.0  # a token opens one stream, immediately
_TOKEN = re.compile(r"([0-9]{1,15})\.([0-9]{1,15})\.([0-9]{1,15})\.([0-9a-f]{64})", re.ASCII)


class InvalidJobToken(FiresteelError):
    """The peer has not proved that it works for the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKeys:
    """The keys of a job under one epoch of its JobMaster, by their expiries in seconds since
    1970.
    """

    job_id: str
    epoch: int
    by_expiry: Mapping[int, bytes]


def issue(secret: bytes, job_id: str, epoch: int, *, now_s: float) -> JobKeys:
    """Returns the keys that are valid now."""
    window = int(now_s // WINDOW_S)
    expiries = [(window + number) * WINDOW_S for number in (1, 2, 3)]
    by_expiry = {expiry: derive(secret, job_id, epoch, expiry) for expiry in expiries}
    return JobKeys(job_id=job_id, epoch=epoch, by_expiry=by_expiry)


def derive(secret: bytes, job_id: str, epoch: int, expiry_s: int) -> bytes:
    content = f"job {job_id} epoch {epoch} until {expiry_s}".encode()
    return hmac.digest(secret, content, hashlib.sha256)


def sign(keys: JobKeys, *, now_s: float) -> str:
    """Returns a token of the job, valid for `VALID_S`, under a key that all of its slots have."""
    expiries = sorted(keys.by_expiry)
    expiry_s = next((each for each in expiries if each - now_s > WINDOW_S), expiries[-1])
    until_s = int(now_s + VALID_S)
    mac = _mac(keys.by_expiry[expiry_s], keys.job_id, until_s)
    return f"{keys.epoch}.{expiry_s}.{until_s}.{mac}"


def verify(token: str, find: FindKey, job_id: str, *, now_s: float) -> None:
    """Raises InvalidJobToken."""
    parts = _TOKEN.fullmatch(token)
    if parts is None:
        raise _not_proved(job_id)
    epoch, expiry_s, until_s = map(int, parts.groups()[:3])
    key = find(job_id, epoch, expiry_s)
    if key is None or not hmac.compare_digest(parts[4], _mac(key, job_id, until_s)):
        raise _not_proved(job_id)
    if min(until_s, expiry_s) <= now_s:
        raise InvalidJobToken(
            f"the caller's token for the job {job_id} has expired; the clocks of the machines may"
            " differ"
        )


def past_epoch(job_id: str, epoch: int, current: int) -> InvalidJobToken:
    return InvalidJobToken(
        f"the caller works for the JobMaster of epoch {epoch} of the job {job_id}, which was"
        f" replaced by that of epoch {current}"
    )


def _not_proved(job_id: str) -> InvalidJobToken:
    return InvalidJobToken(f"the caller has not proved that it works for the job {job_id}")


def _mac(key: bytes, job_id: str, until_s: int) -> str:
    return hmac.digest(key, f"{job_id} {until_s}".encode(), hashlib.sha256).hex()
