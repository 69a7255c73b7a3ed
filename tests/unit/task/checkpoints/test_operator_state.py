"""Lists, union lists and broadcast states of an operator of one's own, with other parallelisms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from firesteel.operator import OperatorState, StreamOperator
from tests.unit.task.checkpoints.vertices import Vertex

SCHEMA = pa.schema([("n", pa.int64())])


class Offsets(StreamOperator):
    """Lists the rows that it received; after a restore, continues its own offsets."""

    def initialize_state(self, state: OperatorState) -> None:
        self.pending = state.list_state("pending")
        self.offsets = state.union_list_state("offsets")
        self.all_offsets = list(self.offsets)
        task = self.context.task
        self.offsets[:] = [n for n in self.offsets if n % task.parallelism == task.subtask]
        self.rules = state.broadcast_state("rules")

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        values = batch.column(0).to_pylist()
        self.pending += values
        self.offsets += values
        self.rules["latest"] = "rule"


def vertex(tmp_path: Path) -> Vertex:
    made = Vertex(Offsets, SCHEMA, None, (), tmp_path)
    made.process([{"n": n} for n in range(7)])
    return made


def operators(of: Vertex) -> list[Offsets]:
    return [harness.operator for harness in of.subtasks]  # type: ignore[misc]


def test_each_kind_of_state_is_shared_in_its_way(tmp_path: Path) -> None:
    of = vertex(tmp_path)
    for parallelism, dealt in ((3, [2, 2, 3]), (3, [2, 2, 3]), (2, [3, 4]), (1, [7])):
        of.restore(of.checkpoint(), parallelism)
        found = operators(of)
        assert [n for one in found for n in one.pending] == list(range(7)), "in order"
        assert [len(one.pending) for one in found] == dealt
        assert all(sorted(one.all_offsets) == list(range(7)) for one in found)
        assert all(one.rules == {"latest": "rule"} for one in found)


def test_the_broadcast_state_of_those_that_run_goes_to_all(tmp_path: Path) -> None:
    of = vertex(tmp_path)
    of.restore(of.checkpoint(), 3)
    taken = of.checkpoint()
    without_first = {n: part for n, part in taken.subtasks.items() if n > 0}
    of.restore(replace(taken, subtasks=without_first), 3)
    assert [one.rules for one in operators(of)] == [{"latest": "rule"}] * 3
    assert [len(one.pending) for one in operators(of)] == [0, 2, 3], "what had finished is gone"
