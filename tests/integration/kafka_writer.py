"""A process that writes numbered batches to Kafka exactly once, as a task does, and keeps its
checkpoints in a folder, until there is a file `end`.
"""

from __future__ import annotations

import pickle
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from firesteel.common.failpoints import Failpoint, reached
from firesteel.connectors import KafkaSink
from firesteel.testing import OperatorHarness
from taskexecutor.executor.connectors.runtime import sink_runtime
from tests.kafka.committed import BATCH_ROWS, SPLITS, rows_of

SCHEMA = pa.schema([("value", pa.string()), ("partition", pa.int32())])


def main(folder: Path, bootstrap: str, topic: str, prefix: str) -> None:
    sink = KafkaSink(
        topic, bootstrap_servers=bootstrap, delivery="exactly-once", transactional_id_prefix=prefix
    )
    kept = folder / "checkpoint"
    checkpoint, number, restored = 0, 0, None
    if kept.exists():
        checkpoint, number, restored = pickle.loads(kept.read_bytes())
    running = OperatorHarness(
        sink_runtime(sink).operator(), [SCHEMA], restored=restored, checkpoints=True
    )
    running.open()
    ended = False
    while not ended:
        ended = (folder / "end").exists()
        running.process(batch(number))
        number += 1
        time.sleep(0.02)
        if ended:
            running.finish()
        checkpoint += 1
        keep(kept, (checkpoint, number, running.checkpoint(checkpoint, finished=ended)))
        if not ended:  # a part of the next transaction
            running.process(batch(number))
            number += 1
        reached(Failpoint.NOTIFICATION_BEFORE)
        running.complete(checkpoint)
        reached(Failpoint.NOTIFICATION_AFTER)
    running.close()


def keep(kept: Path, state: Any) -> None:
    """Completes a checkpoint."""
    reached(Failpoint.SNAPSHOT_AFTER)
    temporary = kept.with_suffix(".new")
    temporary.write_bytes(pickle.dumps(state))
    temporary.rename(kept)


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch(
        [
            [row for split in range(SPLITS) for row in rows_of(split, number)],
            pa.array([split for split in range(SPLITS) for _ in range(BATCH_ROWS)], pa.int32()),
        ],
        schema=SCHEMA,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
