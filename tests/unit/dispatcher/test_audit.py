"""The audit log, without a Dispatcher."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dispatcher import access_store, audit
from dispatcher.audit import MAX_FILE_BYTES, AuditLog
from dispatcher.job_store import JobStore
from firesteel.common.rpc.access_messages import AuditEntry
from firesteel.common.rpc.authentication import Call
from firesteel.common.security.roles import Identity, Role

ADA = Identity(subject="ada", role=Role.VIEWER)


def _call(outcome: str, *, identity: Identity | None = None, port: int = 1, job: str = "") -> Call:
    return Call(
        method="/firesteel.v1.Dispatcher/CancelJob",
        identity=identity,
        peer=f"ipv4:10.0.0.1:{port}",
        job_id=job,
        outcome=outcome,
    )


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


@pytest.fixture
def audited(tmp_path: Path, clock: list[float]) -> AuditLog:
    return AuditLog(tmp_path / "audit.jsonl", now_s=lambda: clock[0])


def _lines(audited: AuditLog) -> list[tuple[str, str, int]]:
    entries = map(json.loads, audited._path.read_text().splitlines())
    return [(entry["subject"], entry["outcome"], entry["count"]) for entry in entries]


def test_equal_refusals_are_summed_up(audited: AuditLog, clock: list[float]) -> None:
    for port in range(1_000):  # each from another port
        audited.record(_call("NO_CREDENTIAL", port=port, job=f"{port:032x}"))
    audited.record(_call("NOT_ALLOWED", identity=ADA))
    audited.record(_call("OK", identity=ADA))
    audited.record(_call("OK", identity=ADA))
    others = [("ada", "NOT_ALLOWED", 1), ("ada", "OK", 1), ("ada", "OK", 1)]
    assert _lines(audited) == [("", "NO_CREDENTIAL", 1), *others]
    clock[0] += audit.SUMMED_S
    audited.record_sums()
    assert _lines(audited)[4:] == [("", "NO_CREDENTIAL", 999)]
    audited.record(_call("NO_CREDENTIAL"))
    assert _lines(audited)[5:] == [("", "NO_CREDENTIAL", 1)]


def test_the_number_of_sums_is_limited(audited: AuditLog, clock: list[float]) -> None:
    for number in range(5_000):
        audited.record(
            _call("NOT_ALLOWED", identity=Identity(subject=f"{number}", role=Role.VIEWER))
        )
    assert len(_lines(audited)) == 1_001
    clock[0] += audit.SUMMED_S
    audited.record_sums()
    assert _lines(audited)[1_001:] == [("", "NOT_ALLOWED", 3_999)]


def test_the_file_is_limited(audited: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_FILE_BYTES == 16 * 2**20
    monkeypatch.setattr(audit, "MAX_FILE_BYTES", 1_000)
    for _ in range(100):
        audited.record(_call("OK", identity=ADA))
    files = sorted(audited._path.parent.iterdir())
    assert [file.name for file in files] == ["audit.jsonl", "audit.jsonl.1"]
    assert all(file.stat().st_size < 1_300 for file in files)


def test_the_table_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_store, "MAX_ENTRIES", 3)
    store = JobStore(JobStore.sqlite_url(tmp_path))
    for number in range(5):
        entry = AuditEntry(
            time_ms=number, subject="", role="", address="", action="x", job_id="", outcome="OK"
        )
        store.access.append([entry])
    assert [entry.time_ms for entry in store.access.audit(limit=10)] == [4, 3, 2]
    store.close()
