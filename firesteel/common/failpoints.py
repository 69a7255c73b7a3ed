"""Places in the protocols of submissions and checkpoints at which a test has the process die, as by
`kill -9`, or stop, as by `kill -STOP`.

FIRESTEEL_FAILPOINTS names a folder, before the process starts: whoever first reaches the point that
a file there has the name of removes the file and dies; or stops, if `.stop` follows the name.
Nobody but tests sets it; without it, a point costs a comparison.
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
    """In the order of a job and its checkpoints."""

    SUBMITTED = "submitted"  # the job is stored, and its client not answered
    SNAPSHOT_BEFORE = "snapshot-before"  # the barrier has come
    SNAPSHOT_AFTER = "snapshot-after"  # the barrier has gone on
    TABLE_AFTER = "table-after"  # of a RocksDB, written for the first time
    UPLOAD_AFTER = "upload-after"  # not acknowledged
    ACKNOWLEDGED = "acknowledged"
    METADATA_BEFORE = "metadata-before"  # all tasks have acknowledged
    METADATA_AFTER = "metadata-after"  # the row is not there
    ROW_COMMITTED = "row-committed"  # the Dispatcher has not answered
    ROW_AFTER = "row-after"  # no task knows that the checkpoint is complete
    NOTIFICATION_BEFORE = "notification-before"  # no sink has committed
    FILE_AFTER = "file-after"  # of a FileSink, perhaps of several
    COLLECTED_AFTER = "collected-after"  # the group's rows may be shown
    SPOOLED = "spooled"  # the chunk is not acknowledged
    BATCH_AFTER = "batch-after"  # of foreach_batch
    MOVED = "moved"  # rows in PostgreSQL, in a transaction that is not committed
    MOVED_AFTER = "moved-after"
    PYTHON_AFTER = "python-after"  # commit() of a PythonSink
    NOTIFICATION_AFTER = "notification-after"  # all sinks of the task have committed


def reached(point: Failpoint) -> None:
    if not _folder:
        return
    for suffix, sent in (("", signal.SIGKILL), (STOP, signal.SIGSTOP)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{_folder}/{point.value}{suffix}")
            os.kill(os.getpid(), sent)
