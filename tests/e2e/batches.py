"""Batch jobs of two shapes in turn, with known rows: each starts when the previous one has ended
with the right result.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import Row

from firesteel import BroadcastProcessFunction, Environment
from firesteel.connectors import FileSink, SequenceSource
from firesteel.datastream import DataStream
from firesteel.errors import FiresteelError
from tests.waiting import PATIENCE_S, eventually

from .conftest import Session

ROWS, KEYS, PLACES = 20_000, 50, 3
READ_S, WRITE_S = 3.0, 2.0  # how long its first region takes, and its last, or longer


class Slowly:
    """Passes everything on, and takes its time. Fails when there is a file `poison`, which it
    removes.
    """

    def __init__(self, poison: Path, pause_s: float) -> None:
        self.poison, self.pause_s = poison, pause_s

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at in range(0, batch.num_rows, 10):
                with contextlib.suppress(FileNotFoundError):
                    self.poison.unlink()
                    raise RuntimeError("poisoned")
                time.sleep(self.pause_s)
                yield batch.slice(at, 10)


class Weighed(BroadcastProcessFunction):
    """Multiplies values by the weight of their place."""

    def process_element(self, value: Row, ctx: Any) -> Iterator[tuple[int, int]]:
        yield value.k, value.value * ctx.get_broadcast_state("weights").get(value.place)

    def process_broadcast_element(self, value: Row, ctx: Any) -> None:
        weights = ctx.get_broadcast_state("weights")
        weights.put(value.place, (weights.get(value.place) or 0) + value.weight)


def weighed(env: Environment, numbers: DataStream) -> DataStream:
    """Values are multiplied by the weight of their key's place. Numbers come to the join as they are
    read, places as a whole result; weights are broadcast.
    """
    places = env.from_sequence(0, KEYS, column="k").select_expr("k", f"k % {PLACES} AS place")
    weights = env.from_sequence(0, PLACES, column="place").select_expr(
        "place", "place + 1 AS weight"
    )
    return (
        numbers.exchange("pipelined")
        .join(places, on="k")
        .connect(weights.broadcast("weights"))
        .process(Weighed(), "k LONG, value LONG")
    )


class BatchJobs:
    """For `Chaos`, like a job: it makes progress when a batch has ended with the rows that it has
    without faults.
    """

    parts = True  # not all of its tasks run at the same time

    def __init__(self, session: Session, folder: Path, **configuration: str) -> None:
        self._session, self._folder, self._configuration = session, folder, configuration
        self._number = 0
        self._poison = folder / "poison"
        self.committed = 0  # rows of all batches
        self.latest_attempt = 0
        self.job_id = self._submit()

    def progress(self, what: str) -> None:
        """Waits for the end of the batch, and starts the next."""
        details = self._session.client.wait(self.job_id)
        assert details.status.name == "FINISHED", what
        rows = ds.dataset(self._out, format="parquet").to_table().to_pylist()
        assert sorted(rows, key=lambda row: row["k"]) == expected(weighed=self._weighed), what
        self.committed += ROWS
        self._number += 1
        self.job_id = self._submit()

    def progress_of_attempt(self, number: int, what: str) -> None:
        self.progress(what)

    def poison(self) -> None:
        """Fails a task."""
        self._poison.touch()
        eventually(lambda: not self._poison.exists(), "a task has failed", patience_s=PATIENCE_S)

    def close(self) -> None:
        with contextlib.suppress(FiresteelError):  # it has just ended
            self._session.client.cancel(self.job_id)

    @property
    def _out(self) -> Path:
        return self._folder / f"batch-{self._number}"

    @property
    def _weighed(self) -> bool:
        return self._number % 2 == 1

    def _submit(self) -> str:
        env = Environment(
            mode="batch",
            parallelism=2,
            configuration={
                "restart-strategy.type": "fixed-delay",
                "restart-strategy.fixed-delay.attempts": "1000",
                "restart-strategy.fixed-delay.delay": "0 s",
            },
        )
        numbers = env.from_source(SequenceSource(0, ROWS, rate_per_s=ROWS / READ_S)).transform(
            lambda df: df.selectExpr(f"value % {KEYS} AS k", "value")
        )
        (
            (weighed(env, numbers) if self._weighed else numbers)
            .key_by("k")
            .aggregate("count(*) AS n", "sum(value) AS s")
            .rebalance()
            .map_in_arrow(Slowly(self._poison, WRITE_S / (KEYS / 20)))
            .sink_to(FileSink(str(self._out)))
        )
        return self._session.submit(env, f"batch {self._number}", **self._configuration)


def expected(*, weighed: bool) -> list[dict[str, int]]:
    """In the order of keys."""
    found = []
    for k in range(KEYS):
        values, weight = range(k, ROWS, KEYS), k % PLACES + 1 if weighed else 1
        found.append({"k": k, "n": len(values), "s": sum(values) * weight})
    return found


@contextlib.contextmanager
def batch_jobs(session: Session, folder: Path, **configuration: Any) -> Iterator[BatchJobs]:
    """The last one is cancelled."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        jobs = BatchJobs(session, folder, **configuration)
        try:
            yield jobs
        finally:
            jobs.close()
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
