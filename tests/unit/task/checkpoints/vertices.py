"""A keyed operator in several subtasks that are checkpointed, and restored with others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from firesteel.common.checkpoints.metadata import CheckpointedOperator
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.ids import OperatorId
from firesteel.operator import StreamOperator
from firesteel.testing import OperatorHarness
from jobmaster.core.checkpoints.restore import assign
from taskexecutor.executor.exchange.partitioning import key_groups
from taskexecutor.executor.exchange.partitioning.routing import subtask_of_group
from taskexecutor.executor.state import CreateKeyedState, HashMapKeyedStateBackend
from taskexecutor.executor.state.files import read_snapshot, write_snapshot

MAX_PARALLELISM = 16
OPERATOR = OperatorId("0" * 32)


class Vertex:
    """Rows go to the subtask of their key, watermarks to all."""

    def __init__(
        self,
        make: Callable[[], StreamOperator],
        schema: pa.Schema | Sequence[pa.Schema],
        output: pa.Schema | None,
        keys: tuple[str, ...],
        directory: Path,
        create_keyed_state: CreateKeyedState = HashMapKeyedStateBackend,
    ) -> None:
        """`schema`: of the input, or of each of several."""
        self._make, self._output, self._keys = make, output, keys
        self._schemas = [schema] if isinstance(schema, pa.Schema) else list(schema)
        self._create_keyed_state = create_keyed_state
        self._storage = CheckpointStorage(str(directory))
        self._ids = itertools.count()
        self._before: list[OperatorHarness] = []  # of earlier attempts
        self.subtasks = [self._subtask(0, 1, None)]

    def _subtask(self, subtask: int, parallelism: int, restored: Any) -> OperatorHarness:
        return OperatorHarness(
            self._make(),
            self._schemas,
            output_schema=self._output,
            subtask=subtask,
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
            restored=restored,
            create_keyed_state=self._create_keyed_state,
        ).open()

    def process(self, rows: list[dict[str, Any]], input_index: int = 0) -> None:
        batch = pa.RecordBatch.from_pylist(rows, schema=self._schemas[input_index])
        if len(self.subtasks) == 1:  # keys may be of any type
            self.subtasks[0].process(batch, input_index)
            return
        groups = key_groups(batch, self._keys, MAX_PARALLELISM).astype(np.int64)
        owners = subtask_of_group(groups, len(self.subtasks), MAX_PARALLELISM)
        for subtask, harness in enumerate(self.subtasks):
            mine = batch.filter(pa.array(owners == subtask))
            if mine.num_rows:
                harness.process(mine, input_index)

    def watermark(self, us: int) -> None:
        for subtask in self.subtasks:
            subtask.watermark(us)

    def flush(self) -> None:
        for subtask in self.subtasks:
            subtask.flush()

    def checkpoint(self) -> CheckpointedOperator:
        written = {
            subtask: write_snapshot(
                self._storage, f"chk/{next(self._ids)}", OPERATOR, harness.snapshot()
            )
            for subtask, harness in enumerate(self.subtasks)
        }
        return CheckpointedOperator(
            operator_id=OPERATOR,
            uid="",
            name="a",
            parallelism=len(self.subtasks),
            max_parallelism=MAX_PARALLELISM,
            subtasks=written,
        )

    def restore(self, checkpoint: CheckpointedOperator, parallelism: int) -> None:
        """Fails the subtasks and starts new ones."""
        for subtask in self.subtasks:
            subtask.close()
        self._before += self.subtasks
        self.subtasks = [
            self._subtask(subtask, parallelism, read_snapshot(self._storage, part))
            for subtask, part in enumerate(assign(checkpoint, parallelism))
        ]

    def end(self) -> None:
        for subtask in self.subtasks:
            subtask.end()

    def rows(self) -> list[dict[str, Any]]:
        return [row for harness in (*self._before, *self.subtasks) for row in harness.rows()]

    @property
    def late(self) -> int:
        return sum(
            counter.value
            for harness in (*self._before, *self.subtasks)
            for name, counter in harness.metrics.counters.items()
            if name == "numLateRecordsDropped"
        )
