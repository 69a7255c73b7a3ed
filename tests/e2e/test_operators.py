"""Side outputs and Python operators end to end, each against the same computation in plain Python."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from firesteel import Environment
from firesteel.connectors import MALFORMED_TAG, CollectSink, FileSource
from firesteel.datastream import DataStream
from firesteel.errors import JobFailed
from firesteel.operator import StreamOperator

from .conftest import Session


def collected(session: Session, *streams: DataStream) -> list[pa.Table]:
    """What comes out of each of the streams, of one run of their program."""
    sinks = [stream.sink_to(CollectSink(), uid=f"collect-{number}") for number, stream in enumerate(streams)]
    graph = sinks[0]._environment.job_graph("collected")
    job_id = session.client.submit(graph)
    session.client.wait(job_id)
    found = {o.uid: o.operator_id for v in graph.vertices for o in v.operators}
    return [session.client.fetch_table(job_id, found[f"collect-{number}"]) for number in range(len(streams))]


class Split(StreamOperator):
    """Odd numbers to the side."""

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        odd = pc.equal(pc.bit_wise_and(batch["value"], 1), 1)
        self.output.emit_side("odd", batch.filter(odd))
        self.output.emit(batch.filter(pc.invert(odd)))


def test_side_outputs_go_on_like_any_stream(session: Session) -> None:
    env = Environment(parallelism=2)
    split = env.from_sequence(0, 1_000).operator("Split", Split, side_outputs={"odd": None})
    odd = split.side_output("odd").key_by("value").transform(lambda df: df.selectExpr("value * 10 AS tens"))
    even, tens = collected(session, split, odd)
    assert sorted(even["value"].to_pylist()) == list(range(0, 1_000, 2))
    assert sorted(tens["tens"].to_pylist()) == [10 * n for n in range(1, 1_000, 2)]


def test_malformed_rows_can_be_read_while_the_source_stays_in_its_plan(session: Session, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1\n2\nx\n4\n")
    env = Environment(parallelism=1)
    source = env.from_source(FileSource(str(tmp_path / "a.csv"), format="csv", schema="n INT", malformed="side_output"))
    good, bad = collected(session, source.transform(lambda df: df.where("n > 1")), source.side_output(MALFORMED_TAG))
    assert sorted(good["n"].to_pylist()) == [2, 4]
    assert bad["_corrupt_record"].to_pylist() == ["x"]


def test_an_unknown_column_of_a_side_output_is_found_before_data_flows(session: Session) -> None:
    env = Environment()
    split = env.from_sequence(0, 10).operator("Split", Split, side_outputs={"odd": "value LONG"})
    split.side_output("odd").key_by("valu").print()
    with pytest.raises(JobFailed, match="did you mean 'value'"):
        session.client.wait(session.submit(env))
