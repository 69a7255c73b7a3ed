"""The audit log: a file with a JSON line per entry, written before the answer, and a table, which
is written in the background. A database that is away delays no call and loses no line.

Repeated refusals cannot fill either: equal refusals are summed up.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import sqlalchemy as sa

from dispatcher.access_store import AccessStore
from dispatcher.job_store import Fenced
from firesteel.common.logs import get_logger
from firesteel.common.process.log_files import old
from firesteel.common.rpc.access_messages import AuditEntry
from firesteel.common.rpc.authentication import Call
from firesteel.common.rpc.status import Reason

log = get_logger(__name__)

SUMMED_S = 60.0  # how long refusals are counted before their sum is recorded
MAX_FILE_BYTES = 16 * 2**20  # then the file is renamed, and replaces the one before
_MAX_SUMS = 1_000
_MAX_WAITING = 10_000  # entries for the table while the database is away
_RETRY_S = 1.0
_REFUSALS = frozenset(
    reason.name
    for reason in (
        Reason.NO_CREDENTIAL,
        Reason.CREDENTIAL_INVALID,
        Reason.CREDENTIAL_EXPIRED,
        Reason.NOT_ALLOWED,
    )
)


@dataclass(slots=True)
class _Sum:
    last: AuditEntry
    until_ms: int
    count: int = 0  # since the entry that was recorded first


class RefusedCalls:
    """Equal refusals: of one caller, from one host, for one method."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], _Sum] = {}

    def is_repeated(self, entry: AuditEntry) -> bool:
        """Counts a refusal; returns whether it is a part of a sum, so that it is not recorded."""
        host = entry.address.rpartition(":")[0]
        key: tuple[str, ...] = (entry.subject, entry.role, host, entry.action, entry.outcome)
        if key not in self._sums and len(self._sums) >= _MAX_SUMS:
            key = ("",)
            entry = replace(
                entry, subject="", role="", address="", action="", outcome="NOT_ALLOWED"
            )
        known = self._sums.get(key)
        if known is None:
            self._sums[key] = _Sum(entry, entry.time_ms + int(SUMMED_S * 1000))
            return False
        known.last, known.count = replace(entry, job_id=""), known.count + 1
        return True

    def ended(self, now_ms: int) -> list[AuditEntry]:
        """Returns an entry for each sum whose time is over, and forgets the sums."""
        over = [key for key, each in self._sums.items() if each.until_ms <= now_ms]
        sums = [self._sums.pop(key) for key in over]
        return [replace(each.last, count=each.count) for each in sums if each.count]


class AuditLog:
    """Records the calls of people that change something, and all calls that are refused."""

    def __init__(self, path: Path, *, now_s: Callable[[], float] = time.time) -> None:
        self._path = path
        self._now_s = now_s
        self._refused = RefusedCalls()
        self._waiting: list[AuditEntry] = []
        self._new = asyncio.Event()
        self._lost = 0

    def record(self, call: Call) -> None:
        """Appends to the file, and to the table soon."""
        who = call.identity
        entry = AuditEntry(
            time_ms=int(self._now_s() * 1000),
            subject=who.subject if who else "",
            role=who.role.value if who else "",
            address=call.peer,
            action=call.method.rpartition("/")[2],
            job_id=call.job_id[:64],
            outcome=call.outcome,
        )
        self.record_sums()
        if entry.outcome not in _REFUSALS or not self._refused.is_repeated(entry):
            self._append(entry)

    def record_sums(self) -> None:
        """Appends the sums of refusals whose time is over."""
        for entry in self._refused.ended(int(self._now_s() * 1000)):
            self._append(entry)

    async def store(self, store: AccessStore) -> None:
        """Writes entries into the table until it is cancelled."""
        while True:
            try:
                await asyncio.wait_for(self._new.wait(), SUMMED_S)
            except TimeoutError:
                self.record_sums()
            self._new.clear()
            entries = list(self._waiting)
            try:
                if entries:
                    await asyncio.to_thread(store.append, entries)
            except (sa.exc.SQLAlchemyError, Fenced):
                await asyncio.sleep(_RETRY_S)
                self._new.set()
                continue
            del self._waiting[: len(entries)]
            if self._lost:
                log.error("entries are missing in the table of the audit log", count=self._lost)
                self._lost = 0

    def _append(self, entry: AuditEntry) -> None:
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(entry)) + "\n")
                full = file.tell() > MAX_FILE_BYTES
            if full:
                self._path.replace(old(self._path))
        except OSError as error:
            log.error("the audit log cannot be written", path=str(self._path), reason=str(error))
        if len(self._waiting) < _MAX_WAITING:
            self._waiting.append(entry)
        else:
            self._lost += 1
        self._new.set()
