"""Programs that several end-to-end tests run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from firesteel import Environment
from firesteel.connectors import SequenceSource
from firesteel.datastream import DataStream

ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def nothing_left(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Reads everything, passes nothing on."""
    for batch in batches:
        yield batch.slice(0, 0)


def unbounded(env: Environment) -> DataStream:
    """So many numbers that only a cancellation or a failure ends the job. It takes all the CPU time
    that it gets: for a job that only has to run, use `unhurried`.
    """
    return env.from_sequence(0, 10**15)


def unhurried(env: Environment) -> DataStream:
    """Numbers without an end, so slowly that the machine is free for others."""
    return env.from_source(SequenceSource(0, rate_per_s=1_000))


def endless(parallelism: int = 1) -> Environment:
    """Two tasks per subtask with a shuffle between them, running until cancelled."""
    env = Environment(parallelism=parallelism)
    unhurried(env).rebalance().map_in_arrow(nothing_left, name="Discard").print()
    return env


def failing(function: ArrowFunction, parallelism: int = 2) -> Environment:
    env = Environment(parallelism=parallelism)
    env.from_sequence(0, 1_000).rebalance().map_in_arrow(function, name="Failing").print()
    return env
