"""Points in the protocols of submissions and checkpoints at which a test makes the process die, as
with `kill -9`, or stop, as with `kill -STOP`.

The variable FIRESTEEL_FAILPOINTS names a folder and is set before the process starts. A process
that reaches a point removes the file in that folder with the name of the point, if there is one,
and dies. If `.stop` follows the name, it stops instead. Only tests set the variable; without it, a
point costs one comparison.
"""

from __future__ import annotations

import contextlib
import os
import signal
from enum import Enum

FOLDER = "FIRESTEEL_FAILPOINTS"
STOP = ".stop"
_folder = os.environ.get(FOLDER, "")


class Failpoint(Enum):
    """The points, in the order of a job and its checkpoints."""

    SUBMITTED = "submitted"  # the job is stored, but its client has no reply yet
    SNAPSHOT_BEFORE = "snapshot-before"  # the barrier has arrived
    SNAPSHOT_AFTER = "snapshot-after"  # the barrier has been forwarded
    TABLE_AFTER = "table-after"  # a table of a RocksDB was written for the first time
    UPLOAD_AFTER = "upload-after"  # the file is not acknowledged
    ACKNOWLEDGED = "acknowledged"
    METADATA_BEFORE = "metadata-before"  # all tasks have acknowledged
    METADATA_AFTER = "metadata-after"  # the row is not stored
    ROW_COMMITTED = "row-committed"  # the Dispatcher has not replied
    ROW_AFTER = "row-after"  # no task knows that the checkpoint is complete
    PARALLELISM_BEFORE = "parallelism-before"  # the checkpoint to restart from is complete
    PARALLELISM_COMMITTED = "parallelism-committed"  # the Dispatcher has not replied
    PARALLELISM_AFTER = "parallelism-after"  # the tasks still run with the old parallelism
    NOTIFICATION_BEFORE = "notification-before"  # no sink has committed
    FILE_AFTER = "file-after"  # a file of a FileSink, perhaps one of several
    COLLECTED_AFTER = "collected-after"  # the group's rows may be shown
    SPOOLED = "spooled"  # the chunk is not acknowledged
    BATCH_AFTER = "batch-after"  # of foreach_batch
    MOVED = "moved"  # the rows are in PostgreSQL, in an uncommitted transaction
    MOVED_AFTER = "moved-after"
    PYTHON_AFTER = "python-after"  # the commit() of a PythonSink has returned
    KAFKA_FLUSHED = "kafka-flushed"  # the broker has the records of an open transaction
    KAFKA_PREPARED = "kafka-prepared"  # its identity is known, and not in the snapshot yet
    KAFKA_COMMIT_BEFORE = "kafka-commit-before"  # the checkpoint is complete
    KAFKA_COMMIT_AFTER = "kafka-commit-after"
    KAFKA_DESCRIBED = "kafka-described"  # on recovery; EndTxn is not sent yet
    KAFKA_END_AFTER = "kafka-end-after"  # on recovery, after EndTxn
    KAFKA_ABORT_AFTER = "kafka-abort-after"  # on recovery, of another transaction
    NOTIFICATION_AFTER = "notification-after"  # all sinks of the task have committed


def reached(point: Failpoint) -> None:
    if not _folder:
        return
    for suffix, sent in (("", signal.SIGKILL), (STOP, signal.SIGSTOP)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{_folder}/{point.value}{suffix}")
            os.kill(os.getpid(), sent)
