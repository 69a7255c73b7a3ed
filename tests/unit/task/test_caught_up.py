"""Sources that have read everything report that they are idle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel import Environment
from firesteel.common.ids import AttemptId
from firesteel.common.operator_messages import SplitRequested
from firesteel.common.states import ExecutionState
from firesteel.connectors import DiscardSink, SequenceSource
from firesteel.connectors.source import EndOfSplit, SourceReader
from firesteel.elements import StreamStatus
from firesteel.operators import EventTimeWatermarkSpec, SourceSpec
from firesteel.operators.watermarks import MULTIPLE_WATERMARK_POLICY
from firesteel.plan.event_time import report_idle_sources
from firesteel.testing import Journal, OperatorHarness, RecordingSource
from jobmaster.core.coordinators import FileSourceEnumerator
from taskexecutor.executor.connectors.kafka.partition_watermarks import PartitionEnds
from taskexecutor.executor.connectors.split_source import SplitReading
from taskexecutor.executor.task import source_task
from tests.unit.jobmaster.test_coordinators import files
from tests.unit.task.checkpoints.test_task_checkpoints import Checkpoints, barrier
from tests.unit.task.runs import SCHEMA, Run, batch, operator, out_edge, vertex
from tests.waiting import eventually


class Pausing(RecordingSource):
    """Has caught up after each of its elements, and after the last one ends."""

    reports_idle = True

    @property
    def caught_up(self) -> bool:
        return True

    def flush(self) -> None:
        self.journal.note(self.name, "flush")


IDLE, ACTIVE = StreamStatus(True), StreamStatus(False)


def test_a_task_reports_idleness_after_the_rows_of_its_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_task, "IDLE_S", 0.0)
    journal, out = Journal(), out_edge("out", 0)
    source = Pausing("src", journal, [batch(1), batch(2)])
    run = Run(vertex(operator("src")), {"src": source}, out_edges=[out]).run()
    assert run.sent(out)[:5] == [batch(1), IDLE, ACTIVE, batch(2), IDLE]
    assert "src.flush" in journal.calls


def test_a_task_reports_idleness_from_time_to_time_and_before_barriers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(source_task, "IDLE_S", 3_600.0)
    checkpoints = Checkpoints(tmp_path)
    journal, out = Journal(), out_edge("out", 0)
    source = Pausing("src", journal, [batch(number) for number in range(5)])
    run = Run(
        vertex(operator("src")),
        {"src": source},
        out_edges=[out],
        checkpoints=checkpoints.services,
    )

    def polled() -> None:
        if len(source.elements) == 2:  # it emits the fourth one now
            run.task.trigger_checkpoint(barrier(1))

    journal.hooks["src.poll"] = polled
    run.start()
    checkpoints.acknowledged()
    first = [batch(0), IDLE, ACTIVE, batch(1), batch(2), batch(3), IDLE, barrier(1)]
    assert run.sent(out)[:8] == first
    run.task.cancel()
    run.join()


def test_a_task_that_waits_reports_idleness_when_it_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_task, "IDLE_S", 0.05)
    journal, out = Journal(), out_edge("out", 0)
    source = Pausing("src", journal, [batch(1), batch(2)], endless=True)
    run = Run(vertex(operator("src")), {"src": source}, out_edges=[out]).start()
    run.wait_for(ExecutionState.RUNNING)
    eventually(lambda: run.sent(out)[-2:] == [batch(2), IDLE], "the mark of idleness")
    run.task.cancel()
    run.join()


class OneRow(SourceReader):
    """Each split has one row, and then nothing for one poll."""

    def begin(self, split: Any) -> None:
        self._left: list[pa.RecordBatch | None] = [batch(1), None]

    def poll(self) -> pa.RecordBatch | None:
        if not self._left:
            raise EndOfSplit
        return self._left.pop(0)

    def position(self) -> Any:
        return None

    def restore(self, position: Any) -> None:
        raise AssertionError


def test_a_source_without_a_split_has_caught_up_once_there_is_none_for_it() -> None:
    reading = SplitReading(lambda context: OneRow(), SCHEMA)
    harness = OperatorHarness(reading, []).open()
    enumerator = FileSourceEnumerator(paths=["/x"], watch_s=1.0)
    enumerator.paths_listed(files("a"), 0.0)

    def answer() -> None:
        sent, harness.sent[:] = list(harness.sent), []
        for event in sent:
            assert isinstance(event.message, SplitRequested)
            for message in enumerator.receive(AttemptId("a"), 0, event.message):
                harness.deliver(message)

    assert harness.poll()
    assert reading.waiting
    assert not reading.caught_up, "the enumerator has not answered"
    answer()
    assert harness.poll()
    assert harness.rows() == [{"value": 1}]
    assert harness.poll()
    assert reading.caught_up, "it waits for rows of its split"
    assert harness.poll()
    assert not reading.caught_up, "there may be another split"
    answer()
    assert harness.poll()
    assert reading.caught_up
    for _, message in enumerator.paths_listed(files("b"), 1.0):
        harness.deliver(message)
    assert harness.poll()
    assert not reading.caught_up
    assert json.dumps(reading.position())


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=30))
def test_partitions_have_caught_up_when_each_has_been_at_its_end(
    events: list[tuple[str, bool]],
) -> None:
    ends: PartitionEnds[str] = PartitionEnds()
    since: dict[str, set[str]] = {"a": set(), "b": set()}
    at_end = {"a": False, "b": False}
    for partition, reached in events:
        at_end[partition] = reached
        if reached:
            ends.reached(partition)
            since[partition].add("end")
        else:
            ends.rows(partition)
        expected = all(at_end[each] or since[each] for each in "ab")
        assert ends.all_reached("ab") == expected
        if expected:
            since = {"a": set(), "b": set()}
    assert PartitionEnds[str]().all_reached(()), "no partition is assigned to it"


def test_all_sources_of_a_job_with_a_watermark_report_idleness() -> None:
    environment = Environment()
    stream = environment.from_source(SequenceSource(0, 1))
    other = environment.from_source(SequenceSource(0, 1))
    other.sink_to(DiscardSink())
    stream.sink_to(DiscardSink())
    graph = environment._program.graph
    assert report_idle_sources(graph, {"a": "b"}) == {"a": "b"}
    graph.add_node("Watermark", EventTimeWatermarkSpec(column="value"), inputs=1)
    assert report_idle_sources(graph, {"a": "b"}) == {"a": "b", MULTIPLE_WATERMARK_POLICY: "min"}
    config = {MULTIPLE_WATERMARK_POLICY: "max"}
    assert report_idle_sources(graph, config) == config
    specs = [node.spec for node in graph.nodes if isinstance(node.spec, SourceSpec)]
    assert [spec.reports_idle for spec in specs] == [True, True]
