"""Sinks and the sequence source."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import orc

from firesteel.common.operator_messages import (
    ChunkAcknowledged,
    OperatorEvent,
    Resend,
    SplitAssigned,
    SplitsExhausted,
)
from firesteel.connectors import (
    CollectSink,
    FileSink,
    PrintSink,
    SequenceSource,
    Sink,
)
from firesteel.errors import FiresteelError, InvalidProgram
from firesteel.operator import StreamOperator, TaskCancelled
from firesteel.testing import OperatorHarness
from taskexecutor.executor.connectors import collect_sink
from taskexecutor.executor.connectors.collect_sink import WINDOW, Collecting
from taskexecutor.executor.connectors.files import sink as file_sink
from taskexecutor.executor.connectors.files.formats import WRITERS
from taskexecutor.executor.connectors.runtime import sink_runtime
from taskexecutor.executor.connectors.sequences.pace import Pace
from taskexecutor.executor.connectors.sequences.source import SequenceReader
from taskexecutor.executor.connectors.split_source import SplitReading
from taskexecutor.executor.state import RestoredOperatorState
from tests.long import fewer
from tests.slow_target import SlowTarget
from tests.unit.operators.test_odd_schemas import rows, streams

SCHEMA = pa.schema([("x", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
BATCH = pa.record_batch([[1, None], [datetime(2013, 1, 1, 5, tzinfo=UTC), None]], schema=SCHEMA)


def writing(sink: Sink) -> StreamOperator:
    return sink_runtime(sink).operator()


def reading(source: SequenceSource, clock: Callable[[], float] = time.monotonic) -> SplitReading:
    return SplitReading(
        lambda context: SequenceReader(source, context, clock), source.output_schema()
    )


def visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def test_files_appear_when_they_are_complete(tmp_path: Path) -> None:
    harness = OperatorHarness(
        writing(FileSink(str(tmp_path / "out"))), [SCHEMA], subtask=1, parallelism=2
    ).open()
    harness.process(BATCH)
    harness.process(BATCH)
    assert visible(tmp_path / "out") == []
    harness.end()
    (path,) = visible(tmp_path / "out")
    assert path.name.startswith("part-1-")
    assert pq.read_table(path).num_rows == 4
    assert pq.read_schema(path).equals(SCHEMA)


def test_files_of_a_checkpoint_are_committed_by_whoever_restores_it(tmp_path: Path) -> None:
    def attempt(number: int, restored: RestoredOperatorState | None = None) -> OperatorHarness:
        sink = writing(FileSink(str(tmp_path)))
        return OperatorHarness(
            sink, [SCHEMA], checkpoints=True, attempt=number, restored=restored
        ).open()

    first = attempt(0)
    first.process(BATCH)
    restored = first.checkpoint(1)
    first.process(BATCH)
    lost = first.checkpoint(2)
    first.process(BATCH)
    first.close()
    assert visible(tmp_path) == []
    assert len(list(tmp_path.glob(".*"))) == 2, "what a checkpoint may hold outlives the task"
    second = attempt(1, restored)
    (path,) = visible(tmp_path)
    second.checkpoint(3)
    second.complete(3)
    assert list(tmp_path.glob(".*")) == [], "the files of checkpoint 2 will not be committed"
    second.close()
    attempt(2, restored).close()  # all of it is committed
    assert visible(tmp_path) == [path]
    with pytest.raises(
        FiresteelError, match="belongs to the checkpoint that the job is restored from"
    ):
        attempt(2, lost)
    path.unlink()
    with pytest.raises(FiresteelError, match="Put it back .an empty file will do"):
        attempt(2, restored)


def test_two_sinks_of_a_task_may_write_to_one_folder(tmp_path: Path) -> None:
    sinks = [
        OperatorHarness(writing(FileSink(str(tmp_path))), [SCHEMA], name=name).open()
        for name in ("one", "other")
    ]
    for sink in sinks:
        sink.process(BATCH)
    for sink in sinks:
        sink.end()
    assert [pq.read_table(path).num_rows for path in visible(tmp_path)] == [2, 2]


def test_a_failed_task_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sink, "GROUP_ROWS", 1)
    harness = OperatorHarness(writing(FileSink(str(tmp_path))), [SCHEMA]).open()
    harness.process(BATCH)
    assert len(list(tmp_path.iterdir())) == 1
    harness.close()
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_starts_over_replaces_what_it_published(tmp_path: Path) -> None:
    def attempt(batches: int, subtask: int = 0) -> OperatorHarness:
        sink = FileSink(str(tmp_path), rolling_interval="1 min")
        harness = OperatorHarness(writing(sink), [SCHEMA], subtask=subtask, parallelism=2).open()
        for _ in range(batches):
            harness.process(BATCH)
            harness.processing_time(10**15)
        return harness

    attempt(3).close()
    attempt(1, subtask=1).close()
    others = tmp_path / "part-0-another-job-0.parquet"
    others.write_text("")
    assert len(visible(tmp_path)) == 5
    again = attempt(0)
    assert len(visible(tmp_path)) == 5, "what is there stays until there is something new"
    again.process(BATCH)
    again.end()
    names = [path.name for path in visible(tmp_path)]
    assert len(names) == 3
    assert others.name in names
    assert [name[:6] for name in names] == ["part-0", "part-0", "part-1"]


WRITING = """
import sys, time
import pyarrow as pa
from firesteel.connectors import FileSink
from firesteel.testing import OperatorHarness
from taskexecutor.executor.connectors.files import sink as file_sink
from taskexecutor.executor.connectors.runtime import sink_runtime

file_sink.GROUP_ROWS = 1
batch = pa.record_batch({"x": [1]})
path, name, subtask = sys.argv[1:]
writer = sink_runtime(FileSink(path)).operator()
place = {"subtask": int(subtask), "parallelism": 2}
harness = OperatorHarness(writer, [batch.schema], name=name, **place).open()
harness.process(batch)
print("writing", flush=True)
time.sleep(600)
"""


def test_what_a_killed_task_left_is_removed_and_only_that(tmp_path: Path) -> None:
    def unfinished() -> int:
        return len(list(tmp_path.glob(".inprogress-*")))

    def again() -> OperatorHarness:
        return OperatorHarness(writing(FileSink(str(tmp_path))), [SCHEMA], name="sink").open()

    tasks = [
        subprocess.Popen(
            [sys.executable, "-c", WRITING, str(tmp_path), name, subtask], stdout=subprocess.PIPE
        )
        for name, subtask in (("sink", "0"), ("sink", "1"), ("other sink", "0"))
    ]
    try:
        for task in tasks:
            assert task.stdout is not None
            assert task.stdout.readline() == b"writing\n"
        again().close()
        assert unfinished() == 3, "all of them are alive"
        for number, left in ((2, 3), (0, 2), (1, 1)):
            tasks[number].kill()
            tasks[number].wait()
            again().close()
            assert unfinished() == left, "the other sink's has to wait for that one"
    finally:
        for task in tasks:
            task.kill()
            task.communicate()


def test_no_rows_no_file(tmp_path: Path) -> None:
    OperatorHarness(writing(FileSink(str(tmp_path))), [SCHEMA]).open().end()
    assert list(tmp_path.iterdir()) == []


def test_csv_and_json(tmp_path: Path) -> None:
    for kind in ("csv", "json"):
        harness = OperatorHarness(
            writing(FileSink(str(tmp_path / kind), format=kind)), [SCHEMA]
        ).open()
        harness.process(BATCH)
        harness.end()
    (csv,), (lines,) = visible(tmp_path / "csv"), visible(tmp_path / "json")
    assert pa_csv.read_csv(csv).column("x").to_pylist() == [1, None]
    assert "2013-01-01T05:00:00" in csv.read_text()
    assert json.loads(lines.read_text().splitlines()[0]) == {
        "x": 1,
        "at": "2013-01-01T05:00:00+00:00",
    }


@pytest.mark.parametrize(
    ("codec", "extension", "opened"),
    [("gzip", ".gz", gzip.open), ("bzip2", ".bz2", bz2.open), ("none", "", open)],
)
@pytest.mark.parametrize(
    ("format", "suffix", "last"),
    [("csv", ".csv", '"b"\n'), ("json", ".json", '{"s":"b"}\n'), ("text", ".txt", "b\n")],
)
def test_texts_are_compressed(
    tmp_path: Path, format: str, suffix: str, last: str, codec: str, extension: str, opened: Any
) -> None:
    sink = FileSink(str(tmp_path), format=format, options={"compression": codec})
    batch = pa.record_batch({"s": ["a", "b"]})
    harness = OperatorHarness(writing(sink), [batch.schema]).open()
    harness.process(batch)
    harness.end()
    (part,) = visible(tmp_path)
    assert part.name.endswith(suffix + extension)
    with opened(part, "rt") as lines:
        assert list(lines)[-1] == last


def test_json_may_omit_null_fields(tmp_path: Path) -> None:
    inner = pa.struct({"x": pa.int64(), "y": pa.string()})
    rows = [
        {"a": None, "s": {"x": None, "y": "z"}, "l": [None, {"x": 1, "y": None}], "m": None},
        {"a": 1, "s": None, "l": None, "m": [("k", None)]},
    ]
    kinds = {"a": pa.int64(), "s": inner, "l": pa.list_(inner), "m": pa.map_(pa.string(), inner)}
    batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema(kinds))
    sink = FileSink(str(tmp_path), format="json", options={"ignoreNullFields": "true"})
    harness = OperatorHarness(writing(sink), [batch.schema]).open()
    harness.process(batch)
    harness.end()
    (part,) = visible(tmp_path)
    assert [json.loads(line) for line in part.read_text().splitlines()] == [
        {"s": {"y": "z"}, "l": [None, {"x": 1}]},
        {"a": 1, "m": {"k": None}},
    ]


DAY = date(1582, 10, 14)
MOMENT = datetime(1955, 6, 1, 1, 2, 3, 7, tzinfo=UTC)
MOMENTS = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (pa.array([None, DAY]), "1582-10-14"),
        (pa.array([{"x": DAY}]), "1582-10-14"),
        (pa.array([[None], None, [DAY]]), "1582-10-14"),
        (pa.array([[("k", MOMENT)]], pa.map_(pa.string(), MOMENTS)), "1955-06-01 01:02:03.000007"),
        (pa.array([MOMENT.replace(year=1500, microsecond=0)], MOMENTS), "1500-06-01 01:02:03"),
    ],
)
def test_orc_has_no_times_that_spark_reads_as_others(values: pa.Array, found: str) -> None:
    table = pa.table({"c": values})
    writer = WRITERS["orc"](io.BytesIO(), table, {})
    with pytest.raises(FiresteelError, match=f"column 'c' has {found}.*use parquet"):
        writer.write_table(table)
    writer.close()


def test_orc_has_times_in_nanoseconds() -> None:
    table = pa.table({"c": pa.array([0, 1, None], pa.timestamp("ns", "UTC"))})
    stream = io.BytesIO()
    writer = WRITERS["orc"](stream, table, {})
    writer.write_table(table)
    writer.close()
    assert orc.read_table(pa.BufferReader(stream.getvalue())).num_rows == 3


def test_orc_has_no_timestamps_without_a_zone(tmp_path: Path) -> None:
    runtime = sink_runtime(FileSink(str(tmp_path), format="orc"))
    with pytest.raises(FiresteelError, match="'t' has timestamps without a time zone"):
        runtime.analyze(pa.schema({"t": pa.list_(pa.timestamp("us"))}))


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_a_file_that_is_large_enough_is_completed(tmp_path: Path, kind: str) -> None:
    sink = FileSink(str(tmp_path), format=kind, rolling_size="20k")
    harness = OperatorHarness(writing(sink), [SCHEMA]).open()
    rng = random.Random(1)
    for _ in range(40):
        numbers = [rng.randrange(2**60) for _ in range(200)]
        harness.process(pa.record_batch([numbers, [None] * 200], schema=SCHEMA))
    before_the_end = visible(tmp_path)
    assert len(before_the_end) >= 2
    assert all(20_000 <= path.stat().st_size < 60_000 for path in before_the_end)
    harness.end()
    paths = visible(tmp_path)
    readers = {"parquet": pq.read_table, "csv": pa_csv.read_csv, "json": pa_json.read_json}
    assert sum(readers[kind](path).num_rows for path in paths) == 8_000
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_file_that_has_been_open_for_long_is_completed(tmp_path: Path) -> None:
    harness = OperatorHarness(
        writing(FileSink(str(tmp_path), rolling_interval="1 min")), [SCHEMA]
    ).open()
    before_ms = int(time.time() * 1000)
    harness.process(BATCH)
    after_ms = time.time() * 1000
    due_ms = harness._task_timers.next_due_ms
    assert due_ms is not None
    assert before_ms + 60_000 <= due_ms <= after_ms + 60_000
    harness.processing_time(due_ms - 1)
    assert visible(tmp_path) == []
    harness.processing_time(due_ms)
    assert len(visible(tmp_path)) == 1
    assert harness._task_timers.next_due_ms is None, "nothing is open"
    harness.process(BATCH)
    harness.end()
    assert sum(pq.read_table(path).num_rows for path in visible(tmp_path)) == 4


def test_rolling_that_makes_no_sense_is_refused() -> None:
    for bad in (
        {"rolling_size": "many"},
        {"rolling_size": 0},
        {"rolling_interval": "soon"},
        {"rolling_interval": "0 s"},
    ):
        with pytest.raises(InvalidProgram, match="rolling_"):
            FileSink("out", **bad)  # type: ignore[arg-type]


def test_a_path_is_local() -> None:
    assert FileSink("file:///data/out").path == "/data/out"
    with pytest.raises(
        InvalidProgram,
        match="FileSink path 's3://bucket/out': the file system 's3' is not supported yet",
    ):
        FileSink("s3://bucket/out")


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FiresteelError, match="cannot write .*file/out"):
        OperatorHarness(writing(FileSink(str(tmp_path / "file" / "out"))), [SCHEMA]).open()
    with pytest.raises(FiresteelError, match="allowed: csv, json, orc, parquet, text"):
        sink_runtime(FileSink(str(tmp_path), format="xlsx")).analyze(SCHEMA)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_named_and_the_unfinished_file_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_sink, "GROUP_ROWS", 1)

    def full(path: Path, mode: str) -> io.BufferedWriter:
        path.touch()
        return open("/dev/full", "wb", buffering=0)  # type: ignore[return-value]

    monkeypatch.setattr(file_sink, "open", full, raising=False)
    harness = OperatorHarness(writing(FileSink(str(tmp_path))), [SCHEMA]).open()
    with pytest.raises(FiresteelError, match="the disk is full"):
        harness.process(BATCH)
    harness.close()
    assert list(tmp_path.iterdir()) == []


def test_what_csv_cannot_hold_is_found_before_data_flows(tmp_path: Path) -> None:
    nested = pa.schema([("n", pa.int64()), ("list", pa.list_(pa.int64()))])
    sink_runtime(FileSink(str(tmp_path), format="json")).analyze(nested)
    with pytest.raises(FiresteelError, match="column 'list' is list<.*use parquet or json"):
        sink_runtime(FileSink(str(tmp_path), format="csv")).analyze(nested)


def test_options_that_make_no_sense_are_found_before_data_flows(tmp_path: Path) -> None:
    def check(format: str, **options: object) -> None:
        sink = FileSink(str(tmp_path), format=format, options=options)  # type: ignore[arg-type]
        sink_runtime(sink).analyze(SCHEMA)

    check("csv", header=False, sep="\t")
    check("parquet", compression="ZSTD")
    for format, options, message in (
        ("csv", {"sep": "ab"}, "option sep is 'ab'; allowed: one character"),
        ("csv", {"header": "maybe"}, "option header is 'maybe'; allowed: true, false"),
        ("parquet", {"compression": "zip"}, "option compression is 'zip'; allowed: none, snappy"),
        (
            "parquet",
            {"compresion": "zstd"},
            "format parquet has no option 'compresion'; it has: compression",
        ),
        (
            "json",
            {"header": "true"},
            "format json has no option 'header'; it has: compression, ignoreNullFields",
        ),
        ("text", {"compression": "zip"}, "allowed: none, uncompressed, gzip, bzip2"),
    ):
        with pytest.raises(FiresteelError, match=message):
            check(format, **options)


def test_rows_are_printed_with_their_subtask(capsys: pytest.CaptureFixture[str]) -> None:
    harness = OperatorHarness(
        writing(PrintSink("flights")), [SCHEMA], subtask=1, parallelism=2
    ).open()
    harness.process(BATCH)
    assert capsys.readouterr().out.startswith("flights:2> {'x': 1")


def acknowledge_what_is_sent(harness: OperatorHarness) -> None:
    def send(event: OperatorEvent) -> None:
        harness.sent.append(event)
        harness.deliver(ChunkAcknowledged(sequence=event.message.sequence))

    harness.environment.send_event = send


def test_collected_rows_wait_for_their_acknowledgement() -> None:
    harness = OperatorHarness(Collecting(interval_ms=0), [SCHEMA]).open()
    for sequence in range(WINDOW):
        harness.process(BATCH)
        harness.flush()
        assert harness.sent[-1].message.sequence == sequence
    harness.deliver(ChunkAcknowledged(sequence=WINDOW - 1))
    acknowledge_what_is_sent(harness)
    harness.process(BATCH)
    harness.end()  # the window is full: it yields to the mails
    assert len(harness.sent) == WINDOW + 1
    assert pa.ipc.open_stream(harness.sent[0].message.ipc_stream).read_all().num_rows == 2


@settings(max_examples=fewer(60))
@given(
    first=streams(),
    second=streams(),
    chunk_bytes=st.sampled_from([1, 200, 2**20]),
    flushes=st.sets(st.integers(0, 7)),
)
def test_what_is_collected_comes_out_as_it_was(
    first: list[pa.RecordBatch], second: list[pa.RecordBatch], chunk_bytes: int, flushes: set[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect_sink, "CHUNK_BYTES", chunk_bytes)
        harness = OperatorHarness(Collecting(interval_ms=0), [first[0].schema]).open()
        acknowledge_what_is_sent(harness)
        for number, batch in enumerate([*first, *second]):  # even if the schema changes
            harness.process(batch)
            if number in flushes:
                harness.flush()
        harness.end()
    chunks = [pa.ipc.open_stream(event.message.ipc_stream).read_all() for event in harness.sent]
    assert [row for chunk in chunks for row in chunk.to_pylist()] == rows([*first, *second])
    assert [event.message.sequence for event in harness.sent] == list(range(len(chunks)))


def test_a_row_too_large_for_a_message_is_refused_and_others_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collect_sink, "CHUNK_BYTES", 1_000)
    monkeypatch.setattr(collect_sink, "MAX_ROW_BYTES", 20_000)
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
    fits = ["q" * 15_000 if n in (40, 41) else "q" for n in range(1_000)]
    harness = OperatorHarness(Collecting(interval_ms=0), [schema]).open()
    acknowledge_what_is_sent(harness)
    harness.process(pa.record_batch([range(1_000), fits], schema=schema))
    harness.flush()
    chunks = [pa.ipc.open_stream(event.message.ipc_stream).read_all() for event in harness.sent]
    assert [text for chunk in chunks for text in chunk["text"].to_pylist()] == fits
    harness.process(pa.record_batch([[1, 2], ["q", "q" * 30_000]], schema=schema))
    with pytest.raises(
        FiresteelError,
        match=r"a row is too large to be collected: it has 30,0\d\d bytes, of which 30,0\d\d are in"
        r" column 'text', and the limit is 20,000; write such rows with a sink",
    ):
        harness.flush()


def test_rows_without_an_acknowledgement_are_sent_again_when_asked() -> None:
    harness = OperatorHarness(Collecting(interval_ms=0), [SCHEMA]).open()
    for _ in range(3):
        harness.process(BATCH)
        harness.flush()
    harness.deliver(ChunkAcknowledged(sequence=0))
    harness.deliver(Resend())
    harness.run_mails()
    assert [event.message.sequence for event in harness.sent] == [0, 1, 2, 1, 2]
    assert harness.sent[3] == harness.sent[1]
    acknowledge_what_is_sent(harness)
    harness.deliver(Resend())
    harness.end()


def test_a_cancelled_task_does_not_wait_for_acknowledgements() -> None:
    harness = OperatorHarness(Collecting(interval_ms=0), [SCHEMA]).open()
    harness.process(BATCH)
    harness.flush()
    harness.cancel()
    with pytest.raises(TaskCancelled):
        harness.finish()
    harness.close()


def test_a_spool_that_cannot_be_written_fails_the_task() -> None:
    harness = OperatorHarness(Collecting(interval_ms=0), [SCHEMA]).open()
    harness.process(BATCH)
    harness.flush()
    harness.deliver(ChunkAcknowledged(sequence=0, error="the disk is full"))
    with pytest.raises(FiresteelError, match="the disk is full"):
        harness.run_mails()
    harness.close()


@pytest.mark.parametrize("subtask", [0, 1])
def test_no_rows_have_columns_too(subtask: int) -> None:
    harness = OperatorHarness(
        writing(CollectSink()), [SCHEMA], subtask=subtask, parallelism=2
    ).open()
    acknowledge_what_is_sent(harness)
    harness.process(BATCH.slice(0, 0))
    harness.end()
    tables = [pa.ipc.open_stream(event.message.ipc_stream).read_all() for event in harness.sent]
    assert tables == ([SCHEMA.empty_table()] if subtask == 0 else [])


def test_a_large_batch_is_cut_into_messages() -> None:
    harness = OperatorHarness(Collecting(interval_ms=0), [SCHEMA]).open()
    rows = 400_000
    acknowledge_what_is_sent(harness)
    harness.process(
        pa.record_batch(
            [pa.array(range(rows)), pa.nulls(rows, SCHEMA.field("at").type)], schema=SCHEMA
        )
    )
    harness.end()
    chunks = [event.message.ipc_stream for event in harness.sent]
    assert len(chunks) > 1
    assert all(len(chunk) < 2 * 2**20 for chunk in chunks)
    assert sum(pa.ipc.open_stream(chunk).read_all().num_rows for chunk in chunks) == rows


def test_a_sequence_is_read_by_splits_and_requests_one_ahead() -> None:
    harness = OperatorHarness(reading(SequenceSource(0, 200_000, "n")), []).open()
    assert harness.poll()
    assert harness.operator.waiting  # type: ignore[attr-defined]
    assert len(harness.sent) == 1
    harness.deliver(SplitAssigned(number=0, split_json='{"start": 0, "end": 150000}'))
    assert harness.poll()
    assert len(harness.sent) == 2
    harness.deliver(SplitAssigned(number=1, split_json='{"start": 150000, "end": 200000}'))
    while len(harness.batches) < 4:
        assert harness.poll()
    harness.deliver(SplitsExhausted())
    assert not harness.poll()
    numbers = [row["n"] for row in harness.rows()]
    assert numbers == list(range(200_000))
    assert max(batch.num_rows for batch in harness.batches) == 65_536
    assert harness.metrics.records_taken == 200_000


def test_a_split_with_a_lost_request_or_answer_is_read_once() -> None:
    harness = OperatorHarness(reading(SequenceSource(0, 200, "n")), []).open()
    harness.poll()
    harness.deliver(Resend())
    harness.poll()
    assert [event.message.received for event in harness.sent] == [0, 0]
    for _ in range(2):  # both requests arrived after all
        harness.deliver(SplitAssigned(number=0, split_json='{"start": 0, "end": 100}'))
    harness.poll()
    harness.poll()
    harness.deliver(Resend())
    harness.run_mails()
    assert [event.message.received for event in harness.sent] == [0, 0, 1, 1]
    harness.deliver(SplitsExhausted())
    harness.deliver(Resend())
    assert not harness.poll()
    assert len(harness.sent) == 4
    assert [row["n"] for row in harness.rows()] == list(range(100))


def test_a_reader_of_a_sequence_continues_at_a_position() -> None:
    context = OperatorHarness(reading(SequenceSource(0, 100_000))).open().operator.context
    first, second = (SequenceReader(SequenceSource(0, 100_000), context) for _ in range(2))
    first.begin({"start": 0, "end": 100_000})
    assert first.poll() is not None
    second.begin({"start": 0, "end": 100_000})
    second.restore(first.position())
    batch = second.poll()
    assert batch is not None
    assert batch["value"][0].as_py() == first.position()


@pytest.mark.parametrize(("row_s", "rows"), [(0.0, range(65_536, 65_537)), (1e-3, range(8, 200))])
def test_a_sequence_adapts_its_batches_to_the_next_operators(row_s: float, rows: range) -> None:
    harness = OperatorHarness(reading(SequenceSource(0, 300_000)), chained=True).open()
    target = SlowTarget(row_s)
    harness.add_target(target)
    harness.deliver(SplitAssigned(number=0, split_json='{"start": 0, "end": 300000}'))
    for _ in range(8):
        harness.poll()
    assert max(target.sizes) in rows
    assert [r["value"] for r in harness.rows()] == list(range(sum(target.sizes)))


def test_a_source_that_is_restored_reads_the_rest_of_its_splits() -> None:
    source = SequenceSource(0, 200_000)
    splits = ['{"start": 0, "end": 100000}', '{"start": 100000, "end": 200000}']

    def read(harness: OperatorHarness, polls: int) -> list[int]:
        for _ in range(polls):
            harness.poll()
        return [n for batch in harness.batches for n in batch.column(0).to_pylist()]

    first = OperatorHarness(reading(source)).open()
    for number, split in enumerate(splits):
        first.deliver(SplitAssigned(number=number, split_json=split))
    for polls in range(6):
        emitted = read(first, min(polls, 1))
        position = json.dumps(first.operator.position())  # type: ignore[attr-defined]
        second = OperatorHarness(reading(source)).open()
        second.operator.restore(json.loads(position))  # type: ignore[attr-defined]
        rest = read(second, 5)
        if polls:
            assert emitted + rest == list(range(200_000))
            assert second.metrics.counters["numRecordsIn"].value == len(rest)
    with pytest.raises(FiresteelError, match="a position of version None cannot be restored"):
        second.operator.restore({"splits": []})  # type: ignore[attr-defined]


@given(rate=st.floats(0.5, 1e6), looks=st.lists(st.floats(0.0, 0.3), max_size=50))
def test_a_pace_is_kept_whenever_it_is_looked_at(rate: float, looks: list[float]) -> None:
    now, total = 100.0, 0
    pace = Pace(rate, now)
    for after_s in looks:
        now += after_s
        due = pace.due(now)
        assert due >= 0
        pace.emitted(due, now)
        total += due
        assert total <= (now - 100.0) * rate + 1
    now += pace.wait_s(now)
    assert pace.due(now) >= 1
    assert total + pace.due(now) >= int((now - 100.0) * rate)


def test_what_back_pressure_held_up_is_made_up_for_by_at_most_a_second() -> None:
    pace = Pace(1000, 0.0)
    assert pace.due(60.0) == 1000
    pace.emitted(1000, 60.0)
    assert pace.due(60.5) == 500


def test_a_rate_is_divided_over_the_subtasks_and_needs_no_busy_loop() -> None:
    now = 10.0
    reader = reading(SequenceSource(0, column="n", rate_per_s=2000), clock=lambda: now)
    harness = OperatorHarness(reader, [], parallelism=2).open()
    harness.deliver(SplitAssigned(number=0, split_json='{"start": 0, "end": 100000}'))
    polls = 0
    while now < 11.0:
        assert harness.poll()
        polls += 1
        if reader.waiting:
            assert reader.poll_interval_s is not None
            now += reader.poll_interval_s
    assert len(harness.rows()) == pytest.approx(1000, abs=15)
    assert polls < 250
    assert max(batch.num_rows for batch in harness.batches) <= 12


def test_a_sequence_that_makes_no_sense_is_refused() -> None:
    for bad in ({"end": -1}, {"rate_per_s": 0}, {"rate_per_s": -3.0}, {"split_rows": 0}):
        with pytest.raises(InvalidProgram, match="must"):
            SequenceSource(0, **bad)  # type: ignore[arg-type]
