"""Tasks with BLOCKING results: the stored partitions, and errors about unreadable ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from firesteel.common.job_graph import Partitioner, ResultPartitionId, ResultType
from firesteel.common.states import ExecutionState as E
from firesteel.elements import EndOfData, EndOfPartition
from firesteel.operator import StreamOperator
from taskexecutor.executor.exchange import Exchange, Locations, ResultFolders
from taskexecutor.executor.exchange.blocking import ServedPartition
from taskexecutor.executor.exchange.partition import PartitionId
from taskexecutor.executor.exchange.registry import PartitionRegistry
from taskexecutor.executor.exchange.server import ExchangeServer
from tests.unit.task.runs import JOB, Run, batch, in_edge, operator, out_edge, vertex

IN = replace(in_edge("in", partitioner=Partitioner.FORWARD), result_type=ResultType.BLOCKING)
OUT = replace(out_edge("out", 0), result_type=ResultType.BLOCKING)


class PassOn(StreamOperator):
    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        self.output.emit(batch)


@pytest.fixture
def new_exchange(tmp_path: Path) -> Iterator[Callable[[], Exchange]]:
    made: list[Exchange] = []

    def new() -> Exchange:
        made.append(
            Exchange(
                host="127.0.0.1",
                window_bytes=4096,
                batch_rows=65536,
                partition_timeout_s=600,
                folders=ResultFolders(disk=tmp_path),
            )
        )
        return made[-1]

    yield new
    for exchange in made:
        exchange.close()


def written(exchange: Exchange, *batches: pa.RecordBatch) -> Any:
    """Returns the stored partition of an upstream task."""
    partition: Any = exchange.create_partition(
        job_id=JOB,
        result_id=IN.result_id,
        producer=0,
        attempt=0,
        partitioner=IN.partitioner,
        producers=1,
        consumers=1,
        max_parallelism=128,
        key_columns=(),
        blocking=True,
    )
    for each in batches:
        partition.emit(each)
    partition.emit_event(EndOfData())
    partition.emit_event(EndOfPartition())
    partition.finish()
    partition.close()
    return partition.stored


def test_a_task_reads_one_blocking_result_and_reports_another(
    new_exchange: Callable[[], Exchange],
) -> None:
    exchange = new_exchange()
    registry = PartitionRegistry(timeout_s=None)
    server = ExchangeServer(registry, "127.0.0.1")
    stored = written(exchange, batch(1, 2), batch(3))
    upstream = PartitionId(JOB, IN.result_id, 0, 0)
    served = ServedPartition(upstream, Path(stored.path), window_bytes=4096, batch_rows=65536)
    registry.add(served)

    def task() -> Run:
        return Run(
            vertex(operator("op", ())),
            {"op": PassOn()},
            in_edges=[(IN, 1)],
            out_edges=[OUT],
            exchange=exchange,
            locations=Locations((server.address,), [0], [0]),
        ).run()

    try:
        run = task()
        assert run.states[-1] is E.FINISHED, run.errors
        (left,) = run.end.partitions
        assert left.id == ResultPartitionId(OUT.result_id, 0, 0)
        assert left.rows == 3
        assert Path(left.path).stat().st_size == left.size_bytes
        Path(left.path).unlink()

        # The upstream task's file is damaged: the failure names the partition immediately.
        Path(stored.path).write_bytes(b"nothing")
        run = task()
        assert run.states[-1] is E.FAILED
        assert run.end.unreadable == ResultPartitionId(IN.result_id, 0, 0)
        assert run.end.partitions == ()
        assert stored.path in run.errors[0].summary
        assert not Path(left.path).exists()
    finally:
        registry.close()
        server.stop()
