"""A job that dies as soon as a checkpoint or savepoint is complete restores it: with every
backend, with barriers that overtake and such that do not, with more subtasks, as many and fewer,
and when none, some or all subtasks of a source have finished.
"""

from __future__ import annotations

import itertools
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from firesteel.common.checkpoints.metadata import CheckpointMetadata
from firesteel.common.states import ExecutionState, JobStatus
from jobmaster.core import commands
from tests.unit.recovery.counted import CONTROLS, KEYS, Control, check_counted_once, program
from tests.unit.recovery.small_cluster import JobStore, SmallCluster, small_cluster

BACKENDS = ["hashmap", "rocksdb"]
FIRST_ROWS, ALL_ROWS = 20, 300  # more than an exchange takes
PARALLELISM = 2
FINISHED = ExecutionState.FINISHED


@dataclass(frozen=True)
class Cell:
    backend: str
    unaligned: bool
    savepoint: bool
    then: int  # the parallelism after the restart
    finished: int  # of the subtasks of source a

    def __str__(self) -> str:
        kind = "savepoint" if self.savepoint else "checkpoint"
        barrier = "unaligned" if self.unaligned else "aligned"
        return f"{self.backend}-{barrier}-{kind}-to-{self.then}-{self.finished}-finished"

    def configuration(self, folder: Path, **more: str) -> dict[str, str]:
        return {
            "state.backend.type": self.backend,
            "execution.checkpointing.incremental": "true",  # of rocksdb
            "heartbeat.timeout": "1 h",
            "execution.checkpointing.interval": "1 h",
            "execution.checkpointing.dir": str(folder / "checkpoints"),
            "execution.checkpointing.unaligned.enabled": str(self.unaligned).lower(),
            "execution.checkpointing.data-inline-threshold": "20 kb" if self.inlined else "0",
            "execution.checkpointing.tolerable-failed-checkpoints": "100",
            **more,
        }

    @property
    def inlined(self) -> bool:
        """Keyed state is in `_metadata`, not in files; half of the cells."""
        return (self.then + self.finished) % 2 == 0

    @property
    def overtakes(self) -> bool:
        return self.unaligned and not self.savepoint


CELLS = list(
    itertools.starmap(
        Cell, itertools.product(BACKENDS, (False, True), (False, True), (1, 2, 3), (0, 1, 2))
    )
)


@pytest.mark.one_in(5)  # which divides no dimension: each pair of values is among them
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_job_resumes_from_what_was_complete_when_it_died(cell: Cell, tmp_path: Path) -> None:
    control = CONTROLS[str(cell)] = Control(
        rows={"a": FIRST_ROWS, "b": ALL_ROWS},
        limits={("b", split): FIRST_ROWS for split in range(4)},
    )
    held = {0: range(4), 1: (0,), 2: ()}[cell.finished]
    control.limits |= {("a", split): FIRST_ROWS // 2 for split in held}
    control.free.set()
    store, out = JobStore(), tmp_path / "out"
    env = program(str(cell), out, PARALLELISM, cell.configuration(tmp_path))
    with small_cluster(env, store) as cluster:
        finish_some(cluster, cell)
        metadata = die_behind_a_checkpoint(cluster, control, cell, str(tmp_path / "savepoint"))
    check_parts(metadata, cell)
    control.limits.clear()
    control.restored.clear()
    control.totals.clear()
    control.free.set()
    again, job_id = restored_program(cell, metadata, cluster, tmp_path)
    with small_cluster(again, store if job_id else JobStore(), job_id=job_id) as cluster:
        cluster.run_to_end()
        assert cluster.core.graph.status is JobStatus.FINISHED, cluster.problems
        assert cluster.restored == metadata, "exactly this one"
        assert cluster.deployed("Source: a") == (cell.finished < PARALLELISM)
        assert cluster.deployed("count")
    union = [f"{subtask} of {PARALLELISM}" for subtask in range(PARALLELISM)]
    assert control.restored == [
        {"union": union, "rule": {"modulo": KEYS}, "begun": False} for _ in range(cell.then)
    ]
    check_counted_once(out, control)


def finish_some(cluster: SmallCluster, cell: Cell) -> None:
    """Lets the subtasks of source a that have no split left end with a checkpoint after that."""
    running = {ExecutionState.RUNNING, FINISHED}
    cluster.run_until(lambda: set(cluster.states("")) <= running, "all tasks run")
    for _ in range(100):
        if cluster.states("Source: a").count(FINISHED) == cell.finished:
            return
        cluster.take_checkpoint()
    raise AssertionError(f"{cluster.states('a')} after many checkpoints; {cluster.problems}")


def die_behind_a_checkpoint(
    cluster: SmallCluster, control: Control, cell: Cell, savepoint_path: str
) -> CheckpointMetadata:
    """Fills the exchange of the counting subtasks. No task is notified that the checkpoint is
    complete.
    """
    control.free.clear()
    control.limits = {where: n for where, n in control.limits.items() if where[0] == "a"}
    sources = cluster.tasks("Source: b")
    cluster.run_until(
        lambda: all(p.blocked or p.overdrawn for task in sources for p in task._partitions),
        "the exchange is full",
    )
    cluster.delays = (commands.NotifyCheckpoint,)
    cluster.stored.clear()
    cluster.begin_checkpoint(savepoint_path=savepoint_path if cell.savepoint else "")
    if not cell.overtakes:
        control.free.set()
    cluster.run_until(lambda: step_if_asked(cluster, control) or cluster.stored, "it is complete")
    (stored,) = cluster.stored
    return stored.metadata


def step_if_asked(cluster: SmallCluster, control: Control) -> None:
    """Counting subtasks that a barrier has reached take one batch more: then it overtakes."""
    for task in cluster.tasks("count"):
        kind: Any = task._kind
        subtask = task.config.subtask
        if any(gate.arrived for gate in kind._gates) and subtask in control.waiting:
            control.permits[subtask].release()


def check_parts(metadata: CheckpointMetadata, cell: Cell) -> None:
    """The checkpoint is of the kind that the cell is about."""
    operators = {operator.name: operator for operator in metadata.operators}
    assert len(operators["Source: a"].subtasks) == (PARALLELISM - cell.finished)
    assert operators["Source: a"].finished == (cell.finished == PARALLELISM)
    assert not operators["count"].finished
    flying = [
        count
        for part in operators["count"].subtasks.values()
        for handle in part.in_flight
        for _, count in handle.batches
    ]
    assert bool(sum(flying)) == cell.overtakes, "rows on their way are part of it"
    for part in operators["count"].subtasks.values():
        assert not (part.keyed if cell.inlined else part.inline)


def restored_program(
    cell: Cell, metadata: CheckpointMetadata, cluster: SmallCluster, folder: Path
) -> tuple[Any, str]:
    """Continues the job with its next JobMaster where possible and returns its id. A savepoint is
    moved, and all that was beside it is gone.
    """
    more = {}
    if cell.savepoint:
        (folder / "savepoint").rename(folder / "moved")
        shutil.rmtree(folder / "checkpoints", ignore_errors=cell.inlined)  # with no file in it
        more["execution.state-recovery.path"] = str(folder / "moved")
    elif cell.then != PARALLELISM:
        more["execution.state-recovery.path"] = cluster.files.path(metadata.checkpoint_id)
    env = program(str(cell), folder / "out", cell.then, cell.configuration(folder, **more))
    return env, "" if more else cluster.graph.job_id
