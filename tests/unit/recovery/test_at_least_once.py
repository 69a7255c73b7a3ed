"""Barriers that do not wait for each other: no row is lost, and only those that overtook a barrier
count twice, only if the job fails.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from firesteel.common.states import JobStatus
from firesteel.elements import CheckpointBarrier
from tests.unit.recovery.counted import CONTROLS, SPLITS, Control, program, rows_in
from tests.unit.recovery.small_cluster import JobStore, SmallCluster, small_cluster

FIRST_ROWS, ALL_ROWS = 20, 300  # more than an exchange takes
PARALLELISM = 2


def barriers(cluster: SmallCluster) -> list[int]:
    """How many of them wait at each counting subtask."""
    kinds: list[Any] = [task._kind for task in cluster.tasks("count")]
    return [
        sum(
            isinstance(element, CheckpointBarrier)
            for gate in kind._gates
            for channel in range(gate.channels)
            for element in gate.queued(channel)
        )
        for kind in kinds
    ]


def emitted(cluster: SmallCluster, vertex_name: str) -> int:
    tasks = cluster.tasks(vertex_name)
    return sum(partition.records_out for task in tasks for partition in task._partitions)


def wait_until_full(cluster: SmallCluster, vertex_name: str) -> None:
    tasks = cluster.tasks(vertex_name)
    cluster.run_until(
        lambda: all(partition.blocked for task in tasks for partition in task._partitions),
        f"{vertex_name} has filled the exchange",
    )


@pytest.mark.parametrize("fails", [False, True])
def test_rows_count_twice_only_after_a_failure_and_none_is_lost(
    fails: bool, tmp_path: Path
) -> None:
    name = f"at-least-once-{fails}"
    control = CONTROLS[name] = Control(
        rows=dict.fromkeys("ab", ALL_ROWS),
        limits={("a", split): FIRST_ROWS for split in range(SPLITS)},
    )
    configuration = {
        "heartbeat.timeout": "1 h",
        "execution.checkpointing.interval": "1 h",
        "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
        "execution.checkpointing.mode": "at-least-once",
    }
    store, out = JobStore(), tmp_path / "out"
    with small_cluster(program(name, out, PARALLELISM, configuration), store) as cluster:
        cluster.run_until(lambda: cluster.core.job.all_run, "all tasks run")
        cluster.run_until(lambda: len(control.waiting) == PARALLELISM, "each has rows to count")
        wait_until_full(cluster, "Source: b")
        cluster.run_until(
            lambda: emitted(cluster, "Source: a") == PARALLELISM * FIRST_ROWS,
            "each subtask of a is in the middle of its first split",
        )
        # Any two of them: a source that has started one requests another.
        first_splits = {split for source, split in control.begun if source == "a"}
        cluster.begin_checkpoint()
        cluster.run_until(
            lambda: barriers(cluster) == [PARALLELISM] * PARALLELISM,
            "those of a wait, and those of b follow the rows that fill the exchange",
        )
        control.limits.clear()
        wait_until_full(cluster, "Source: a")
        control.free.set()
        cluster.notifies = not fails
        cluster.run_until(lambda: cluster.stored, "the checkpoint is complete")
        if not fails:
            cluster.run_to_end()
    if fails:
        env = program(name, out, PARALLELISM, configuration)
        with small_cluster(env, store, job_id=cluster.graph.job_id) as cluster:
            cluster.run_to_end()
            assert cluster.core.graph.status is JobStatus.FINISHED, cluster.problems
    times = Counter(row[:3] for row in rows_in(out))
    assert set(times) == {
        (source, split, n) for source in "ab" for split in range(SPLITS) for n in range(ALL_ROWS)
    }, "none is lost"
    doubled = {row for row, count in times.items() if count > 1}
    assert any(source == "a" for source, _, _ in doubled) == fails
    assert not {
        (split, n)
        for source, split, n in doubled
        if source == "a" and split in first_splits and n < FIRST_ROWS
    }, "these were ahead of their barrier"
