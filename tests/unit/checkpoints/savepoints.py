"""Savepoints of operators that have run in harnesses."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import firesteel
from firesteel.common.checkpoints.descriptions import StateDescriptions
from firesteel.common.checkpoints.metadata import (
    CheckpointedOperator,
    CheckpointMetadata,
    encode,
)
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.ids import JobId, OperatorId, stable_id
from firesteel.functions import CoProcessFunction
from firesteel.operator import OperatorState, StreamOperator
from firesteel.operators import (
    TransformWithStateSpec,
)
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar.schemas import columns_of_key
from taskexecutor.executor.operators.transform_with_state import TransformWithState
from taskexecutor.executor.operators.transform_with_state.analysis import check_processor
from taskexecutor.executor.state import CreateKeyedState, HashMapKeyedStateBackend
from taskexecutor.executor.state.files import write_snapshot
from taskexecutor.executor.state.keyed import SnapshotTarget
from tests.backends import creator
from tests.batches import batch_of

TIME = pa.timestamp("us", "UTC")
IN = pa.schema([("shop", pa.string()), ("n", pa.int32()), ("at", TIME)])
OUT = pa.schema([("seen", pa.string())])


def moment(us: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(us / 1e6, tz=datetime.UTC)


def rows(*found: tuple[str, int, int]) -> pa.RecordBatch:
    return batch_of(IN, found)


ROWS = rows(("a", 1, 10), ("b", 2, 20), ("a", 3, 30))


class Sold(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "pieces BIGINT, at STRUCT<day: DATE, n: INT>")
        self.each = handle.getListState("each", "shop INT")
        self.by_size = handle.getMapState(
            "by size", "size INT", "size DOUBLE, tags ARRAY<MAP<STRING, INT>>", 1000
        )
        handle.getValueState("never", "x INT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            (before, _) = self.total.get() or (0, None)
            self.total.update((before + row.n, (datetime.date(2024, 1, row.n), None)))
            self.each.appendValue((row.n,))
            self.by_size.updateValue((row.n,), (row.n / 2, [{"x": row.n}]))
            self.handle.registerTimer(60_000 + row.n)
        return iter(())


class Both(CoProcessFunction):
    def open(self, context: Any) -> None:
        self.kept = context.get_state("kept")
        self.odd = context.get_map_state("odd")
        self.last = context.get_state("last", "DOUBLE")
        self.all = context.get_list_state("all", "n INT, half DOUBLE")

    def process_element1(self, value: Any, ctx: Any) -> None:
        self.kept.update(value.n)
        self.last.update(value.n / 2)
        self.all.add((value.n, value.n / 2))
        self.odd.put(value.n, object if value.n == 1 else "text")
        ctx.timer_service().register_event_time_timer(value.n)
        ctx.timer_service().register_processing_time_timer(value.n)


class Own(StreamOperator):
    """With each kind of operator state."""

    def initialize_state(self, state: OperatorState) -> None:
        state.list_state("pending").extend([1, 2])
        state.union_list_state("offsets").append("x")
        state.broadcast_state("rules").update({"a": 1, "b": 2})


INLINE = "inline"


class Written:
    """A savepoint of operators that have run in harnesses."""

    def __init__(self, directory: Path, kind: str = "hashmap") -> None:
        """`kind`: of the backend; with rocksdb it is a checkpoint; "inline": without files."""
        self.kind = kind
        self.create = creator("hashmap" if kind == INLINE else kind, directory)
        self.base = directory / "written"
        self.is_savepoint = kind != "rocksdb"
        self.directory = self.base if self.is_savepoint else self.base / "chk-7"
        self._storage = CheckpointStorage(str(self.base))
        self.operators: list[CheckpointedOperator] = []

    def add(
        self, uid: str, harness: OperatorHarness, states: StateDescriptions | None = None
    ) -> None:
        operator_id = OperatorId(stable_id(uid))
        target = SnapshotTarget(
            storage=self._storage, checkpoint_id=7, name=uid, base=None, written=[]
        )
        snapshot = harness.snapshot()
        written = write_snapshot(
            self._storage,
            f"files/{uid}",
            operator_id,
            snapshot,
            target,
            inline_bytes=2**20 if self.kind == INLINE else 0,
        )
        snapshot.keyed.release()
        if states is None:
            states = harness.state.described_rows
        self.operators.append(
            CheckpointedOperator(
                operator_id=operator_id,
                uid=uid,
                name=f"the {uid}",
                parallelism=1,
                max_parallelism=128,
                subtasks={0: written},
                states=states,
            )
        )

    def read(self) -> firesteel.savepoint.Savepoint:
        metadata = CheckpointMetadata(
            checkpoint_id=7,
            job_id=JobId("8a3f" * 8),
            job_name="sales",
            timestamp_ms=1000,
            savepoint=self.is_savepoint,
            operators=tuple(self.operators),
        )
        CheckpointStorage(str(self.directory)).write("_metadata", [encode(metadata)])
        return firesteel.savepoint.read(str(self.directory))


def processor(
    create: CreateKeyedState = HashMapKeyedStateBackend,
) -> tuple[OperatorHarness, StateDescriptions]:
    spec = TransformWithStateSpec(
        processor=Sold(), key_columns=("shop",), output_schema=OUT, time_mode="processing_time"
    )
    states = check_processor(spec, "sold", columns_of_key(IN, ("shop",)))
    harness = OperatorHarness(
        TransformWithState(spec, lambda: 50), [IN], output_schema=OUT, create_keyed_state=create
    ).open()
    harness.process(ROWS)
    return harness, states
