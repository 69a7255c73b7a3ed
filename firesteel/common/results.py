"""Partitions of BLOCKING results, as masters and TaskExecutors identify them."""

from __future__ import annotations

from typing import NamedTuple

from firesteel.common.ids import ResultId


class ResultPartitionId(NamedTuple):
    """The output of one attempt of one producer of a job's result."""

    result_id: ResultId
    producer: int  # its subtask
    attempt: int

    def __str__(self) -> str:
        return (
            f"partition of producer subtask {self.producer}, attempt {self.attempt}, of result"
            f" {self.result_id}"
        )


class StoredPartition(NamedTuple):
    """A complete partition. Its TaskExecutor serves it until it is released or the job ends."""

    id: ResultPartitionId
    size_bytes: int  # the size of its file
    rows: int
    path: str = ""  # its file, as the process that wrote it left it
