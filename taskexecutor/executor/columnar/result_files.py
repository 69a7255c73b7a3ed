"""Results of any size from the JVM: in files that Spark's tasks write, not in its heap."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from firesteel.operator import PlanMeter
from taskexecutor.executor.columnar.jvm.code import Code
from taskexecutor.executor.columnar.schemas import conform, to_arrow
from taskexecutor.executor.columnar.transfer import in_arrow, unwrapped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BATCH_ROWS = 8_192  # a batch is in the heap several times while it is written


def collect_in_files(
    frame: DataFrame, schema: pa.Schema, meter: PlanMeter, code: Code, folder: Path
) -> Generator[pa.RecordBatch, None, None]:
    """Like `collect`, for results of any size: Spark writes them to files in `folder` before the
    first one is read, and has a batch of each partition in its heap. A caller that abandons the
    rest removes the files.

    Raises the plan's error, with the file's name if the disk is full.
    """
    with meter.planning:
        code.load("FiresteelSpill")
        spill = code.type("FiresteelSpill")(str(folder))
        rows = in_arrow(frame, _BATCH_ROWS).toJavaRDD()
        written = rows.mapPartitionsWithIndex(spill, False)
    with unwrapped():
        paths = [Path(path) for path in written.collect()]
    arrow_schema = to_arrow(frame.schema)
    for path in paths:
        with pa.OSFile(str(path)) as file:
            while file.tell() < file.size():
                with meter.converting:
                    message = pa.ipc.read_message(file)
                    batch = pa.ipc.read_record_batch(message, arrow_schema)
                    batch = conform(batch, schema) if batch.num_rows else batch
                if batch.num_rows:
                    yield batch
        path.unlink()
