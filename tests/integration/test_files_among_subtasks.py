"""The subtasks of a source, with splits from the JobMaster's coordinator, read each row once."""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.common.ids import AttemptId
from firesteel.connectors import FileSource
from jobmaster.core.coordinators import file_source
from jobmaster.core.coordinators.file_source import FileSourceEnumerator
from jobmaster.paths import list_files
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from tests.integration.test_positions import Program

SCHEMA = "n LONG, s STRING"
Row = tuple[int | None, str | None]
ROWS: st.SearchStrategy[list[Row]] = st.lists(
    st.tuples(st.none() | st.integers(-99, 99), st.none() | st.text('ab,"é ', max_size=8)),
    max_size=40,
)


def write(path: Path, rows: Sequence[Row], group_rows: int) -> None:
    match path.suffix:
        case ".csv":
            with path.open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)
        case ".json":
            path.write_text("".join(json.dumps({"n": n, "s": s}) + "\n" for n, s in rows))
        case ".parquet":
            schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
            table = pa.Table.from_pylist([{"n": n, "s": s} for n, s in rows], schema)
            pq.write_table(table, path, row_group_size=group_rows)


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
@settings(max_examples=10)
@given(data=st.data())
def test_subtasks_together_read_each_row_once(
    engine: SparkEngine, format: str, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        group_rows = data.draw(st.integers(1, 20), "rows of a group")
        for number, rows in enumerate(data.draw(st.lists(ROWS, min_size=1, max_size=5), "files")):
            write(Path(folder, f"{number}.{format}"), rows, group_rows)
        # Small files are cut as large ones are, and share splits.
        patch.setattr(file_source, "MIN_SPLIT_BYTES", data.draw(st.integers(1, 400), "split bytes"))
        patch.setattr(file_source, "FILE_BYTES", data.draw(st.integers(0, 100), "bytes of a file"))
        source = FileSource(folder, format=format, schema=SCHEMA)
        parallelism = data.draw(st.integers(1, 3), "parallelism")
        options = source.coordinator(parallelism, read_by_spark=True).options
        coordinator = FileSourceEnumerator.from_options(options)
        coordinator.paths_listed(list_files(coordinator.paths_to_list).files, 0.0)
        program = Program(engine, source, lambda rows: rows)
        subtasks = [program.started() for _ in range(parallelism)]
        reading = list(range(parallelism))
        while reading:
            number = data.draw(st.sampled_from(reading), "whose turn it is")
            subtask = subtasks[number]
            if not subtask.poll():
                reading.remove(number)
            subtask.flush()
            for event in subtask.sent:
                attempt = AttemptId(str(number))
                for answer in coordinator.receive(attempt, number, event.message):
                    subtask.deliver(answer)  # type: ignore[arg-type]
            subtask.sent.clear()
        found = [row for subtask in subtasks for row in subtask.rows()]
        for subtask in subtasks:
            subtask.close()
        read = engine.session.read.format(format).schema(SCHEMA).load(folder)
        assert in_order(found) == in_order(read.toArrow().to_pylist())


def in_order(rows: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))
