"""How much memory it takes to write and to restore state that is in files: some pieces of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from firesteel.common.checkpoints import storage as checkpoint_storage
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.ids import OperatorId
from firesteel.common.process import temporary
from firesteel.operators import EventTimes, IntervalSpec, JoinSpec
from firesteel.testing import OperatorHarness
from taskexecutor.executor import column_memory
from taskexecutor.executor.column_memory import SlotColumnMemory
from taskexecutor.executor.operators.joins import join_operator, stream_join
from taskexecutor.executor.state import HashMapKeyedStateBackend, files, keyed_rows
from taskexecutor.executor.state.files import read_snapshot, write_snapshot
from taskexecutor.executor.state.keyed import SnapshotTarget
from tests.unit.operators.test_memory_of_batches import (
    AT,
    BATCH_ROWS,
    BUDGET_BYTES,
    CASES,
    KEY,
    NUMBER,
    PIECE_BYTES,
    ROWS,
    Case,
    batches,
    peak_bytes,
)

OPERATOR = OperatorId("0" * 32)
# Rows of joins are larger than what finds them, which is in memory.
TEXT = pa.field("text", pa.string())
OTHER = pa.schema([KEY, AT.with_name("other_at"), NUMBER.with_name("other_n")])
TIMES = EventTimes(columns=("at", "other_at"))


def join(**settings: Any) -> Case:
    spec = JoinSpec(left_keys=("k",), right_keys=("k",), **settings)
    return Case(lambda: join_operator(spec), [KEY, AT, TEXT])


STATES = {
    "join": join(),
    "interval join": join(within=IntervalSpec(times=TIMES, lower_us=0, upper_us=10**9)),
    **{name: CASES[name] for name in ("many windows", "sessions", "rows_between")},
}


def rows_of(harness: OperatorHarness) -> int:
    tables = (kept.table() for kept in harness.snapshot().rows.values())
    return sum(table.num_rows for table in tables if table is not None)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("by_key_group", [False, True], ids=["checkpoint", "savepoint"])
@pytest.mark.parametrize("name", STATES)
def test_some_pieces_of_the_state_are_in_memory(
    name: str, by_key_group: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(column_memory, "_PIECE_BYTES", (PIECE_BYTES, PIECE_BYTES))
    monkeypatch.setattr(column_memory, "_SMALL_BYTES", 4 << 10)
    for module, constant in (
        (checkpoint_storage, "_RUN_BYTES"),
        (files, "_PIECE_BYTES"),
        (keyed_rows, "ARRANGED_BYTES"),
    ):
        monkeypatch.setattr(module, constant, PIECE_BYTES)
    monkeypatch.setattr(keyed_rows, "HASHED_ROWS", BATCH_ROWS)
    monkeypatch.setattr(stream_join, "BUNDLE_ROWS", BATCH_ROWS)
    case, storage = STATES[name], CheckpointStorage(str(tmp_path))
    inputs = [pa.schema(case.fields), *([OTHER] if "join" in name else [])]

    def opened(restored: Any = None) -> OperatorHarness:
        memory = SlotColumnMemory(BUDGET_BYTES, temporary.SHARED_MEMORY)
        return OperatorHarness(
            case.operator(),
            inputs,
            create_keyed_state=partial(HashMapKeyedStateBackend, columns=memory),
            restored=restored,
        ).open()

    run = opened()
    for batch in batches(case.fields, ROWS):
        if TEXT in case.fields:
            texts = pc.binary_repeat(batch.column(0), 10)
            batch = batch.set_column(batch.num_columns - 1, TEXT, texts)
        run.process(batch)
    run.flush()
    target = SnapshotTarget(storage=storage, checkpoint_id=1, name="a", base=None, written=[])
    with peak_bytes() as peak:
        written = write_snapshot(
            storage, "state", OPERATOR, run.snapshot(), None if by_key_group else target
        )
        assert 2 * peak() < written.size_bytes
    with peak_bytes() as peak:
        again = opened(read_snapshot(storage, written))
        assert 2 * peak() < written.size_bytes
    assert rows_of(again) == rows_of(run) == ROWS
