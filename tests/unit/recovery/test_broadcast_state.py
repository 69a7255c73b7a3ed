"""A barrier overtakes broadcast rows of which one subtask has taken more than the other: each goes
on from its own broadcast state, and has every row once.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa

from firesteel import Environment
from firesteel.common.states import JobStatus
from firesteel.connectors import DiscardSink
from firesteel.operator import OperatorState, StreamOperator
from jobmaster.core import commands
from tests.unit.recovery.counted import CONTROLS, SCHEMA, SPLITS, Control, Numbers
from tests.unit.recovery.small_cluster import JobStore, small_cluster
from tests.unit.recovery.test_matrix import step_if_asked

NAME = "broadcast"
ROWS = 300  # of each split: more than an exchange takes
TAKEN: dict[int, Counter[tuple[int, int]]] = {}  # by subtask


class Told(StreamOperator):
    """Counts how often it received each row."""

    def initialize_state(self, state: OperatorState) -> None:
        self.control = CONTROLS[NAME]
        self.told = state.broadcast_state("told")
        TAKEN[self.context.task.subtask] = Counter(self.told)

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        self.control.await_permit(self.context)
        for row in zip(batch["split"].to_pylist(), batch["n"].to_pylist(), strict=True):
            self.told[row] = self.told.get(row, 0) + 1
        TAKEN[self.context.task.subtask] = Counter(self.told)


def test_subtasks_resume_from_different_rows_of_a_broadcast_stream(tmp_path: Path) -> None:
    control = CONTROLS[NAME] = Control(rows={"a": ROWS})
    env = Environment(
        parallelism=2,
        configuration={
            "heartbeat.timeout": "1 h",
            "execution.checkpointing.interval": "1 h",
            "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
            "execution.checkpointing.unaligned.enabled": "true",
        },
    )
    rows = env.from_source(Numbers(NAME, "a"), uid="a").broadcast()
    rows.operator("count", Told, SCHEMA, uid="told").sink_to(DiscardSink(), uid="discard")
    store = JobStore()
    with small_cluster(env, store) as cluster:
        cluster.run_until(lambda: control.waiting == {0, 1}, "both have rows")
        control.permits[1].release(3)
        cluster.run_until(lambda: TAKEN[1].total() >= 30, "one has taken some")
        cluster.delays = (commands.NotifyCheckpoint,)
        cluster.begin_checkpoint()
        cluster.run_until(
            lambda: step_if_asked(cluster, control) or cluster.stored, "it is complete"
        )
        (stored,) = cluster.stored
    (told,) = (o for o in stored.metadata.operators if o.name == "count")
    assert told.subtasks[0].broadcasts != told.subtasks[1].broadcasts
    control.free.set()
    with small_cluster(env, store, job_id=cluster.graph.job_id) as cluster:
        cluster.run_to_end()
        assert cluster.core.graph.status is JobStatus.FINISHED, cluster.problems
    every = Counter((split, n) for split in range(SPLITS) for n in range(ROWS))
    assert [TAKEN[subtask] for subtask in range(2)] == [every, every]
