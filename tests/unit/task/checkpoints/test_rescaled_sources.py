"""Sources that are restored with fewer or more subtasks read every split once, in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from firesteel.common.checkpoints.metadata import CheckpointedOperator
from firesteel.common.checkpoints.state import OperatorSnapshot
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.ids import AttemptId
from firesteel.common.operator_messages import ToOperator
from firesteel.connectors import FileSource, SequenceSource
from firesteel.errors import FiresteelError
from firesteel.operators import SourceSpec
from firesteel.testing import Journal, OperatorHarness, RecordingSource
from jobmaster.core.checkpoints.restore import assign
from jobmaster.core.coordinators.splits import SequenceSourceEnumerator
from taskexecutor.executor.connectors.files.stage import FileStage
from taskexecutor.executor.connectors.sequences.source import SequenceReader
from taskexecutor.executor.connectors.split_source import SplitReading
from taskexecutor.executor.connectors.splits import Begun
from taskexecutor.executor.state.files import read_snapshot, write_snapshot
from taskexecutor.executor.timing.bundle_time import MOST_ROWS as BATCH_ROWS
from tests.unit.task.checkpoints.vertices import MAX_PARALLELISM, OPERATOR

SOURCE = SequenceSource(0, 12 * BATCH_ROWS)
SPLIT_ROWS = 2 * BATCH_ROWS


class Subtasks:
    """They read what their enumerator gives them."""

    def __init__(self, storage: CheckpointStorage, parts: list[OperatorSnapshot | None]) -> None:
        self.storage = storage
        self.enumerator = SequenceSourceEnumerator(
            start=0, end=12 * BATCH_ROWS, split_rows=SPLIT_ROWS
        )
        self.harnesses = [
            OperatorHarness(
                SplitReading(
                    lambda context: SequenceReader(SOURCE, context), SOURCE.output_schema()
                ),
                [],
                subtask=subtask,
                parallelism=len(parts),
                max_parallelism=MAX_PARALLELISM,
                restored=None if part is None else read_snapshot(storage, part),
            ).open()
            for subtask, part in enumerate(parts)
        ]

    def poll(self, subtask: int) -> bool:
        harness = self.harnesses[subtask]
        more = harness.poll()
        sent, harness.sent[:] = list(harness.sent), []
        for event in sent:
            for answer in self.enumerator.receive(AttemptId(str(subtask)), subtask, event.message):
                assert isinstance(answer, ToOperator)
                harness.deliver(answer)
        return more

    def checkpoint(self) -> CheckpointedOperator:
        return CheckpointedOperator(
            operator_id=OPERATOR,
            uid="",
            name="numbers",
            parallelism=len(self.harnesses),
            max_parallelism=MAX_PARALLELISM,
            coordinator=self.enumerator.snapshot(),
            subtasks={
                subtask: write_snapshot(self.storage, str(subtask), OPERATOR, harness.snapshot())
                for subtask, harness in enumerate(self.harnesses)
            },
        )

    def batches(self, subtask: int) -> list[int]:
        """The number of each batch, by its first number."""
        return [
            batch.column(0)[0].as_py() // BATCH_ROWS for batch in self.harnesses[subtask].batches
        ]


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_every_split_is_read_once_and_in_order(tmp_path: Path, parallelism: int) -> None:
    storage = CheckpointStorage(str(tmp_path))
    first = Subtasks(storage, [None] * 3)
    for subtask in (2, 1, 0, 0, 1, 2, 2, 2, 0, 0, 1):  # each reads one split and has another
        first.poll(subtask)
    checkpoint = first.checkpoint()
    before = [number for subtask in range(3) for number in first.batches(subtask)]
    assert 3 <= len(before) < 9
    again = Subtasks(storage, list(assign(checkpoint, parallelism)))
    again.enumerator.restore(checkpoint.coordinator)
    reading = list(range(parallelism))
    while reading:
        reading = [subtask for subtask in reading if again.poll(subtask)]
    after = [again.batches(subtask) for subtask in range(parallelism)]
    assert all(numbers == sorted(numbers) for numbers in after)
    assert sorted(sum(after, before)) == list(range(12))


def test_a_source_that_cannot_merge_positions_says_so() -> None:
    harness = OperatorHarness(RecordingSource("src", Journal(), [pa.record_batch({"x": [1]})]), [])
    harness.state.list_state("firesteel.position")[:] = [[0, 0], [0, 0]]
    with pytest.raises(
        FiresteelError,
        match="cannot be restored with fewer subtasks: this one would have to resume 2",
    ):
        harness.open()


def test_event_time_of_merged_file_sources_is_the_earliest() -> None:
    schema = pa.schema([("line", pa.string())])
    source = FileSource("/in", format="text")
    stage = FileStage(source, SourceSpec(source=source), schema, [], schema)

    def position(watermark_us: int | None, *places: int) -> dict[str, Any]:
        splits = [Begun({}, None, place) for place in places]
        return {"version": 1, "splits": splits, "watermark_us": watermark_us}

    merged = stage.merged([position(9, 1, 4), position(5, 2, 3), position(7, 0)])
    assert merged["watermark_us"] == 5
    assert [begun.place for begun in merged["splits"]] == [0, 1, 2, 3, 4]
    assert stage.merged([position(9, 1), position(None, 0)])["watermark_us"] is None
