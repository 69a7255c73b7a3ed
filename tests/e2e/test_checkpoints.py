"""Jobs that fail go on from their latest checkpoint: every row counts once, in state and in files."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pyarrow.dataset as ds
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from firesteel import Environment
from firesteel.connectors import FileSink, SequenceSource
from firesteel.datastream import DataStream
from firesteel.errors import JobFailed

from .conftest import Session, files_below

ROWS, KEYS = 60_000, 7
CHECKPOINTS = {
    "execution.checkpointing.interval": "200 ms",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "2",
    "restart-strategy.fixed-delay.delay": "0 s",
}


@pytest.fixture(autouse=True, scope="module")
def _ship_this_module() -> Iterator[None]:
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


class Ledger(StatefulProcessor):
    """Numbers the rows of each key. Fails once by itself, and once because its process is killed."""

    def __init__(self, flags: str) -> None:
        self.flags = Path(flags)

    def init(self, handle: object) -> None:
        self.count = handle.getValueState("count", "n BIGINT")  # type: ignore[attr-defined]

    def handleInputRows(self, key, rows, timer_values):  # type: ignore[no-untyped-def]
        (n,) = self.count.get() or (0,)
        for row in rows:
            n += 1
            if row.value >= ROWS // 3 and self.first_time("raised"):
                raise RuntimeError("fails once")
            if row.value >= 2 * ROWS // 3 and self.first_time("killed"):
                os.kill(os.getpid(), signal.SIGKILL)
            yield Row(key=key[0], value=row.value, n=n)
        self.count.update((n,))

    def first_time(self, flag: str) -> bool:
        try:
            (self.flags / flag).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def numbered(env: Environment, flags: Path) -> DataStream:
    return (
        env.from_source(SequenceSource(0, ROWS, rate_per_s=10_000))
        .transform(lambda df: df.selectExpr("value", f"value % {KEYS} AS key"))
        .key_by("key")
        .transform_with_state(
            Ledger(str(flags)), "key BIGINT, value BIGINT, n BIGINT", "update", "none"
        )
    )


def test_every_row_counts_once_through_a_failed_task_and_a_killed_process(
    session: Session, tmp_path: Path
) -> None:
    out, flags, checkpoints = (tmp_path / name for name in ("out", "flags", "checkpoints"))
    flags.mkdir()
    env = Environment(
        parallelism=2,
        configuration={**CHECKPOINTS, "execution.checkpointing.dir": str(checkpoints)},
    )
    numbered(env, flags).sink_to(FileSink(str(out)))
    details = session.run(env)
    assert details.status.name == "FINISHED"
    assert {path.name for path in flags.iterdir()} == {"raised", "killed"}
    rows = ds.dataset(out, format="parquet").to_table().to_pandas()
    assert sorted(rows["value"]) == list(range(ROWS)), "every row once"
    for _, of_key in rows.groupby("key"):
        assert sorted(of_key["n"]) == list(range(1, len(of_key) + 1)), "and counted once"
    attempts = {path.name.split("-")[4] for path in out.glob("part-*")}
    assert attempts == {"0", "1", "2"}, "files of all three attempts: none was taken back"
    assert not list(out.glob(".*")), "nothing is left uncommitted"
    assert not list(files_below(checkpoints)), "nobody will restore the job"


def test_an_operator_that_no_checkpoint_holds_is_refused_before_data_flows(
    session: Session, tmp_path: Path
) -> None:
    env = Environment(configuration={**CHECKPOINTS, "execution.checkpointing.dir": str(tmp_path)})
    totals = env.from_source(SequenceSource(0, 10, rate_per_s=10)).key_by("value")
    totals.aggregate("count(*) AS n").sink_to(FileSink(str(tmp_path / "out")))
    with pytest.raises(JobFailed, match=r"cannot take part in checkpoints yet: its totals are not"):
        session.run(env)
    assert not (tmp_path / "out").exists()
