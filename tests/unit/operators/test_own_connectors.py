"""A program's own source and sink, as the example has them, in the operators that run them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from firesteel import Environment
from firesteel.common.operator_messages import SplitAssigned, SplitsExhausted
from firesteel.connectors import EndOfSplit, Sink, SinkWriter, Source, SourceReader
from firesteel.errors import FiresteelError, InvalidProgram
from firesteel.operator import RuntimeContext
from firesteel.testing import OperatorHarness
from taskexecutor.executor.connectors.runtime import sink_runtime
from taskexecutor.executor.connectors.split_source import SplitReading

EXAMPLES = Path(__file__).parents[3] / "examples"
SCHEMA = pa.schema([("article", pa.string()), ("quantity", pa.int64())])
BATCH = pa.record_batch([["steel", "flint"], [40, 3]], schema=SCHEMA)


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    sys.modules.pop("own_connector", None)


def reading(source: Source) -> OperatorHarness:
    operator = SplitReading(source.create_reader, SCHEMA)
    return OperatorHarness(operator, [], output_schema=SCHEMA).open()


def writing(sink: Sink, subtask: int = 0) -> OperatorHarness:
    operator = sink_runtime(sink).operator()
    return OperatorHarness(operator, [SCHEMA], subtask=subtask, parallelism=2).open()


def test_the_splits_of_a_source_cover_it_and_are_read_to_their_ends(tmp_path: Path) -> None:
    from own_connector import SqliteSource, create_table

    create_table(tmp_path / "stock.db")
    source = SqliteSource(str(tmp_path / "stock.db"), "stock", "")
    harness = reading(source)
    for number, split in enumerate(source.splits(2)):
        harness.deliver(SplitAssigned(number=number, split_json=json.dumps(split)))
    harness.deliver(SplitsExhausted())
    while harness.poll():
        pass
    harness.close()
    assert [row["quantity"] for row in harness.rows()] == list(range(10_000))
    assert harness.metrics.records_taken == 10_000


def test_a_reader_continues_at_a_position(tmp_path: Path) -> None:
    from own_connector import SqliteReader, SqliteSource, create_table

    create_table(tmp_path / "stock.db")
    source = SqliteSource(str(tmp_path / "stock.db"), "stock", "", batch_rows=10)
    first, second = SqliteReader(source, SCHEMA), SqliteReader(source, SCHEMA)
    for reader in (first, second):
        reader.open()
        reader.begin({"after": 0, "to": 25})
    first.poll()
    second.restore(json.loads(json.dumps(first.position())))
    assert second.poll()["quantity"].to_pylist() == list(range(10, 20))
    assert second.poll().num_rows == 5
    with pytest.raises(EndOfSplit):
        second.poll()
    for reader in (first, second):
        reader.close()


def test_a_sink_commits_at_the_end_and_replaces_an_earlier_attempt(
    tmp_path: Path,
) -> None:
    from own_connector import GzipSink

    for _ in range(2):
        harness = writing(GzipSink(str(tmp_path)))
        harness.process(BATCH)
        assert not list(tmp_path.glob("*.gz"))
        harness.end()
        assert [path.name for path in tmp_path.iterdir()] == ["0-1.jsonl.gz"]


def test_a_task_that_fails_leaves_nothing(tmp_path: Path) -> None:
    from own_connector import GzipSink

    harness = writing(GzipSink(str(tmp_path)))
    harness.process(BATCH)
    harness.close()
    assert list(tmp_path.iterdir()) == []


def test_what_was_prepared_and_cannot_be_committed_is_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from own_connector import GzipCommitter, GzipSink

    def fail(self: object, committables: object) -> None:
        raise OSError("the store is away")

    monkeypatch.setattr(GzipCommitter, "commit", fail)
    harness = writing(GzipSink(str(tmp_path)))
    harness.process(BATCH)
    with pytest.raises(OSError, match="the store is away"):
        harness.finish()
    assert len(list(tmp_path.iterdir())) == 1
    harness.close()
    assert list(tmp_path.iterdir()) == []


class Uncommitted(Sink):
    commit_interval_s = 1.0

    def create_writer(self, context: RuntimeContext) -> SinkWriter:
        return Preparing()


class Preparing(SinkWriter):
    def write(self, batch: pa.RecordBatch) -> None: ...

    def prepare(self) -> list[str]:
        return ["something"]


def test_committables_need_a_committer() -> None:
    harness = writing(Uncommitted())
    with pytest.raises(FiresteelError, match=r"1 committables, and create_committer\(\) returned"):
        harness.finish()


class Waiting(SourceReader):
    poll_interval_s = 0.2

    def begin(self, split: object) -> None: ...

    def poll(self) -> pa.RecordBatch | None:
        return None

    def position(self) -> None: ...

    def restore(self, position: object) -> None: ...


class Nothing(Source):
    def splits(self, parallelism: int) -> list[dict[str, int]]:
        return [{"number": number} for number in range(parallelism)]

    def create_reader(self, context: RuntimeContext) -> SourceReader:
        return Waiting()


def test_a_reader_without_rows_is_polled_again_after_its_interval() -> None:
    harness = reading(Nothing())
    harness.deliver(SplitAssigned(number=0, split_json="{}"))
    assert harness.poll()
    assert harness.operator.waiting  # type: ignore[attr-defined]
    assert harness.operator.poll_interval_s == 0.2  # type: ignore[attr-defined]
    harness.close()


def test_splits_are_listed_for_the_parallelism_when_the_job_is_submitted() -> None:
    env = Environment(parallelism=3)
    env.from_source(Nothing()).print()
    (vertex,) = env.job_graph("own").vertices
    assert vertex.operators[0].coordinator_kind == "splits"
    assert json.loads(vertex.operators[0].coordinator_options_json) == {
        "splits": [{"number": 0}, {"number": 1}, {"number": 2}],
        "one_each": True,
    }


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (["a"], r"splits\(\) must return dicts, not str 'a'"),
        ([{"a": object()}], "its splits are not JSON: Object of type object"),
    ],
)
def test_splits_are_dicts_that_json_can_hold(splits: object, message: str) -> None:
    class Wrong(Nothing):
        def splits(self, parallelism: int) -> list[dict[str, int]]:
            return splits  # type: ignore[return-value]

    env = Environment()
    env.from_source(Wrong()).print()
    with pytest.raises(InvalidProgram, match=message):
        env.job_graph("own")


@dataclass
class Named(Nothing):
    name: str
    parallelism: str  # the fields of a source are its own


def test_a_source_may_have_fields_of_any_name() -> None:
    env = Environment()
    env.from_source(Named("topic", "high")).print()
    (vertex,) = env.job_graph("own").vertices
    assert vertex.parallelism == 1
    assert vertex.operators[0].name == "Source: Named"


def test_what_a_source_does_not_implement_is_named() -> None:
    env = Environment()
    env.from_source(Source()).print()
    with pytest.raises(InvalidProgram, match=r"Source does not implement splits\(\)"):
        env.job_graph("own")
