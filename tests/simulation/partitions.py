"""Checks a JobMaster's handling of BLOCKING results: no task reads a partition that is incomplete
or released (invariant 18).
"""

from __future__ import annotations

from collections.abc import Iterable

from firesteel.common.job_graph import ResultPartitionId, ResultType
from firesteel.common.states import ExecutionState
from jobmaster.core import commands
from jobmaster.shell import RunningJob


class Partitions:
    def __init__(self) -> None:
        self._released: dict[tuple[str, int], set[ResultPartitionId]] = {}  # by job and epoch
        self.read = 0  # complete partitions that were assigned to tasks

    def check(self, job: RunningJob, sent: Iterable[commands.Command]) -> str:
        """Returns what is wrong."""
        released = self._released.setdefault((job.job_id, job.epoch), set())
        problem = ""
        for command in sent:
            match command:
                case commands.ReleasePartitions():
                    released.update(command.partitions)
                    problem = problem or self._needed(job, command)
                case commands.DeployTasks():
                    problem = problem or self._incomplete(job, command, released)
                case _:
                    pass
        return problem

    def _needed(self, job: RunningJob, command: commands.ReleasePartitions) -> str:
        for partition in command.partitions:
            consumers = job.core.graph.result(partition.result_id).consumer.vertices
            left = [c for c in consumers if c.current.state is not ExecutionState.FINISHED]
            if left:
                return f"{partition} is released, and {left[0].current.name} has not finished"
        return ""

    def _incomplete(
        self, job: RunningJob, command: commands.DeployTasks, released: set[ResultPartitionId]
    ) -> str:
        graph = job.core.graph
        for task in command.tasks:
            for result in graph.inputs_of(task.vertex_id):
                if result.edge.result_type is not ResultType.BLOCKING:
                    continue
                for producer in result.producers_of(task.subtask):
                    read = result.producer.vertices[producer].current
                    partition = ResultPartitionId(result.edge.result_id, producer, read.attempt)
                    if read.state is not ExecutionState.FINISHED:
                        return f"{task.attempt_id} reads {partition}, which is {read.state.name}"
                    if partition in released:
                        return f"{task.attempt_id} reads {partition}, which was released"
                    self.read += 1
        return ""
