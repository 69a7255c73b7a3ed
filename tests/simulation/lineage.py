"""Which splits the rows of a job have come from, along the partitions that its tasks have read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from firesteel.common.ids import ResultId
from firesteel.common.job_graph import ResultPartitionId
from tests.simulation.executor import SimulatedTask
from tests.simulation.snapshots import subtask_of
from tests.simulation.splits import name_of


def lineage_problems(job_id: str, finished: Iterable[SimulatedTask]) -> Iterator[str]:
    """`finished`: all attempts that have."""
    tasks = sorted(finished, key=lambda task: task.attempt)
    last = {subtask_of(task): task for task in tasks}
    by_output = {
        ResultPartitionId(ResultId(edge.result_id), task.subtask, task.attempt): task
        for task in tasks
        for edge in task.vertex.out_edges
    }
    contents: dict[str, frozenset[tuple[str, str]]] = {}

    def content(task: SimulatedTask) -> frozenset[tuple[str, str]]:
        """The splits whose rows it has produced."""
        if task.attempt_id not in contents:
            found = {(task.vertex.vertex.vertex_id, name_of(split)) for split in task.splits}
            for partition in task.inputs:
                if (producer := by_output.get(partition)) is not None:
                    found |= content(producer)
            contents[task.attempt_id] = frozenset(found)
        return contents[task.attempt_id]

    for task in last.values():
        for partition in task.inputs:
            producer = by_output.get(partition)
            if producer is None:
                yield f"job {job_id}: {partition} was read, but its producer never finished"
            elif content(producer) != content(last[subtask_of(producer)]):
                yield (
                    f"job {job_id}: {partition} was read with splits {sorted(content(producer))};"
                    f" those that count are {sorted(content(last[subtask_of(producer)]))}"
                )
