"""Several jobs of one environment: each sink runs once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from firesteel import Environment
from firesteel.connectors import CollectSink, DiscardSink
from firesteel.errors import InvalidProgram, JobFailed

from .conftest import Session


def test_a_second_execute_runs_only_the_sinks_that_were_added_since(
    session: Session, in_session: None, tmp_path: Path
) -> None:
    written = tmp_path / "written"

    def append(df, batch_id):
        with written.open("a") as file:
            file.writelines(f"{row.value}\n" for row in df.collect())

    env = Environment(parallelism=1)
    numbers = env.from_sequence(0, 10)
    numbers.foreach_batch(append)
    env.execute("first")
    with pytest.raises(InvalidProgram, match="there is nothing to run: earlier jobs"):
        env.execute("nothing new")

    collected = numbers.filter("value > 7").sink_to(CollectSink())
    with pytest.warns(UserWarning, match=r"reads 'Source: Sequence' \(test_several_jobs.py, line"):
        second = env.execute("second")
    assert sorted(second.table(collected)["value"].to_pylist()) == [8, 9]
    assert numbers.execute_and_collect("third").num_rows == 10
    assert sorted(map(int, written.read_text().split())) == list(range(10)), "each of them once"


def test_what_is_pending_runs_with_the_rows_that_are_collected(
    session: Session, in_session: None, tmp_path: Path
) -> None:
    def mark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            (tmp_path / "marked").touch()
            yield batch

    env = Environment(parallelism=1)
    numbers = env.from_sequence(0, 10)
    numbers.map_in_arrow(mark).sink_to(DiscardSink())
    with numbers.execute_and_collect(iterate="arrow") as batches:
        assert sum(batch.num_rows for batch in batches) == 10
    assert (tmp_path / "marked").exists()
    with pytest.raises(InvalidProgram, match="there is nothing to run"):
        env.execute()


def test_the_sinks_of_a_job_that_failed_have_run(session: Session, in_session: None) -> None:
    env = Environment(parallelism=1)
    env.from_sequence(0, 10).transform(lambda df: df.where("valeu > 1")).print()
    with pytest.raises(JobFailed, match="valeu"):
        env.execute()
    with pytest.raises(InvalidProgram, match="build the program in a new Environment"):
        env.execute()
