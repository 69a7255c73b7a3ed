"""Partitions of BLOCKING results, as the masters and TaskExecutors name them."""

from __future__ import annotations

from typing import NamedTuple

from firesteel.common.ids import ResultId


class ResultPartitionId(NamedTuple):
    """What one attempt of one producer has written of a job's result."""

    result_id: ResultId
    producer: int  # its subtask
    attempt: int

    def __str__(self) -> str:
        return (
            f"partition of producer subtask {self.producer}, attempt {self.attempt}, of result"
            f" {self.result_id}"
        )


class StoredPartition(NamedTuple):
    """A partition that is complete. Its TaskExecutor serves it until it is released, or the job
    ends.
    """

    id: ResultPartitionId
    size_bytes: int  # of its file
    rows: int
    path: str = ""  # of its file, as the process that wrote it has left it
