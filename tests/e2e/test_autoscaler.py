"""The load of a running job triples and falls, and the autoscaler follows it: few decisions, each
with its reason, and no row is lost or doubled.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from firesteel import Environment
from firesteel.client.cluster.directory import ClusterDirectory
from firesteel.common.rescales import Rescale
from firesteel.connectors import EndOfSplit, FileSink, Source, SourceReader
from firesteel.errors import FiresteelError
from firesteel.operator import OperatorState, RuntimeContext, StreamOperator
from tests.credentials import get
from tests.waiting import eventually

from .conftest import Session, firesteel, logs_below, running

pytestmark = pytest.mark.usefixtures("shipped_module")

KEYS, MOST = 60, 3
ROW_S = 0.02  # of work: a subtask processes 50 rows per second
LOW, HIGH = 20, 60  # rows per second
SCHEMA = "n BIGINT, key BIGINT"
# The shortest window has two steps of measurement.
SETTINGS = {
    "job.autoscaler.enabled": "true",
    "job.autoscaler.metrics.window": "10 s",
    "job.autoscaler.stabilization.interval": "5 s",
    "job.autoscaler.scale-down.interval": "20 s",
    "job.autoscaler.catch-up.duration": "2 min",
    "job.autoscaler.vertex.max-parallelism": str(MOST),
    "execution.checkpointing.interval": "1 s",
}


class Arrivals:
    """The rows that have arrived so far, as the test decides: a file has the rates since their
    times, and the number of the last row once there is one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, *, end: int | None = None, **more: float) -> None:
        known = json.loads(self.path.read_text()) if self.path.exists() else {"rates": []}
        known["rates"] += [[time.time(), rate] for rate in more.values()]
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps({**known, "end": end}))
        part.rename(self.path)

    def read(self) -> tuple[int, int | None]:
        """Returns the number of rows that have arrived, and of those that ever will."""
        known = json.loads(self.path.read_text())
        if known["end"] is not None:
            return known["end"], known["end"]
        rates = known["rates"]
        ends = [at for at, _ in rates[1:]] + [time.time()]
        return int(sum(r * (end - at) for (at, r), end in zip(rates, ends, strict=True))), None


class Paced(Source):
    def __init__(self, arrivals: Arrivals) -> None:
        self.arrivals = arrivals

    def output_schema(self) -> str:
        return SCHEMA

    def splits(self, parallelism: int) -> list[dict[str, int]]:
        return [{}]

    def create_reader(self, context: RuntimeContext) -> SourceReader:
        return PacedReader(self.arrivals, context)


class PacedReader(SourceReader):
    """Numbers the rows, and reports the arrived ones that it has not read yet."""

    poll_interval_s = 0.5  # few batches: the load is the work on rows

    def __init__(self, arrivals: Arrivals, context: RuntimeContext) -> None:
        self.arrivals, self.next = arrivals, 0
        self.reads = False
        context.pending_records(lambda: self.arrivals.read()[0] - self.next if self.reads else 0)

    def begin(self, split: object) -> None:
        self.next, self.reads = 0, True

    def poll(self) -> pa.RecordBatch | None:
        arrived, end = self.arrivals.read()
        if self.next == end:
            raise EndOfSplit
        rows = range(self.next, min(self.next + KEYS, arrived))
        if not rows:
            return None
        self.next = rows.stop
        return pa.record_batch(
            {"n": pa.array(rows, pa.int64()), "key": pa.array([n % KEYS for n in rows], pa.int64())}
        )

    def position(self) -> int:
        return self.next

    def restore(self, position: int) -> None:
        self.next = position


class Work(StreamOperator):
    """Takes its time for each row, and counts the rows of each key."""

    def initialize_state(self, state: OperatorState) -> None:
        self.state = state.keyed

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        time.sleep(ROW_S * batch.num_rows)
        counts = []
        for key in batch["key"].to_pylist():
            counts.append((self.state.get("count", key) or 0) + 1)
            self.state.put("count", key, counts[-1])
        self.output.emit(batch.append_column("count", pa.array(counts, pa.int64())))


def program(arrivals: Arrivals, folder: Path) -> Environment:
    env = Environment(configuration={"execution.checkpointing.dir": str(folder / "checkpoints")})
    (
        env.from_source(Paced(arrivals), uid="paced")
        .key_by("key")
        .operator("work", Work, f"{SCHEMA}, count BIGINT")
        .sink_to(FileSink(str(folder / "rows")))
    )
    return env


def await_decisions(
    session: Session, job_id: str, wanted: Callable[[int], bool]
) -> tuple[Rescale, ...]:
    """Returns all changes, oldest first, once the autoscaler wants to keep such a parallelism."""

    def settled() -> bool:
        try:
            found = session.client.rescale(job_id, dry_run=True).assessments
        except FiresteelError:
            return False  # the JobMaster is busy with a change
        (work,) = (each for each in found if "work" in each.name)
        measured = work.measured_s >= 10.0
        return measured and work.decided == work.parallelism and wanted(work.parallelism)

    eventually(settled, lambda: str(session.client.job_details(job_id)), patience_s=180.0)
    return session.client.job_details(job_id).rescales[::-1]


@pytest.mark.long  # unit/jobmaster/test_autoscaler.py has the decisions, test_scale.py their effect
def test_the_autoscaler_follows_a_load_that_triples_and_falls(
    session: Session, tmp_path: Path
) -> None:
    arrivals = Arrivals(tmp_path / "arrivals.json")
    arrivals.write(rate=LOW)
    overrides = {key.replace(".", "__"): value for key, value in SETTINGS.items()}
    job_id = session.submit(program(arrivals, tmp_path), **overrides)
    session.wait_until(job_id, running)
    assert await_decisions(session, job_id, lambda parallelism: parallelism == 1) == ()
    dry_run = firesteel("scale", "-m", session.address, job_id, "--dry-run").stdout
    assert re.search(r"work.*: stays at 1", dry_run) and "Arriving/s" in dry_run, dry_run

    arrivals.write(rate=HIGH)
    ups = await_decisions(session, job_id, lambda parallelism: parallelism > 1)
    arrivals.write(rate=LOW)
    (most,) = (after for _, after in ups[-1].changes.values())
    changes = await_decisions(session, job_id, lambda parallelism: parallelism < most)
    check_decisions(ups, changes)
    check_reasons(session, job_id, changes)

    end = arrivals.read()[0]
    arrivals.write(end=end)
    session.client.wait(job_id)
    check_ledger(tmp_path / "rows", end)


def check_decisions(ups: tuple[Rescale, ...], changes: tuple[Rescale, ...]) -> None:
    """Few, first up and then down, and all of them succeed."""
    steps = [set(each.changes.values()) for each in changes]
    assert all(not each.problem for each in changes), changes
    raised = [all(after > before for before, after in step) for step in steps]
    assert raised == sorted(raised, reverse=True), steps
    assert 1 <= raised.count(True) == len(ups) <= 3 and 1 <= raised.count(False) <= 3, steps


def check_reasons(session: Session, job_id: str, changes: tuple[Rescale, ...]) -> None:
    """`show`, the log and the REST API have each decision with its reason."""
    shown = " ".join(firesteel("show", "-m", session.address, "--full", job_id).stdout.split())
    assert "Autoscaler:" in shown and "Rescales, newest first" in shown
    logged = "".join(logs_below(session.cluster.directory, "jobmaster-*.log"))
    rest = ClusterDirectory(session.cluster.directory).read().rest_address
    history = json.loads(get(rest, f"/jobs/{job_id}/rescales/history"))
    for change, shown_by_rest in zip(changes[::-1], history, strict=True):
        verb = "raised" if "is raised from" in change.reason else "lowered"
        assert f"is {verb} from" in change.reason and "records/s arrive" in change.reason
        assert change.reason.removeprefix("autoscaler: ").split("'")[2] in logged
        assert shown_by_rest["reason"] == change.reason
        assert shown_by_rest["terminalState"] == "COMPLETED"
        assert change.reason.split(", because")[0].split()[-2] in shown


def check_ledger(folder: Path, end: int) -> None:
    rows = ds.dataset(folder, format="parquet").to_table().to_pydict()
    assert sorted(rows["n"]) == list(range(end)), "each row once"
    for key in range(KEYS):
        counts = sorted(c for c, k in zip(rows["count"], rows["key"], strict=True) if k == key)
        assert counts == list(range(1, len(counts) + 1)), "its state has counted each row once"
