"""Reads the rows of a job, batch by batch, while the job runs."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from firesteel.client.client import Client, raise_unless_finished
from firesteel.client.execution_context import OUTPUT_END_S, ExecutionContext, StopProgram
from firesteel.client.job_output import JobOutput, say_what_was_dropped
from firesteel.common.job_graph import JobGraph
from firesteel.common.time_zones import SESSION_TIME_ZONE, has_moments, in_zone
from firesteel.errors import ClusterUnreachable, FiresteelError

if TYPE_CHECKING:
    import pandas as pd

Batch = TypeVar("Batch", pa.RecordBatch, "pd.DataFrame")
BatchKind = Literal["arrow", "pandas"]


class CollectedBatches(Generic[Batch]):
    """An iterator over the batches of a stream as they arrive; it skips batches without rows.

    It ends when the job has finished, and raises JobFailed or JobCanceled otherwise. Leaving its
    `with` block, or calling `close()`, cancels a running job:

        with stream.execute_and_collect(iterate="arrow") as batches:
            for batch in batches:
                ...

    Rows are kept on the cluster's disk until they are fetched; a slow reader does not slow down the
    job.
    """

    def __init__(
        self,
        client: Client,
        job_id: str,
        operator_id: str,
        convert: Callable[[pa.RecordBatch], Batch],
        output: JobOutput | None = None,
        limit: int | None = None,
    ) -> None:
        """`limit` is the number of rows after which the job is cancelled."""
        self.job_id = job_id
        self.operator_id = operator_id
        self._left = limit
        self._client = client
        self._convert = convert
        self._batches = client.fetch_results(job_id, operator_id)
        self._output = output
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether all rows have been read, or the job was cancelled."""
        return self._ended

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._left == 0:
            self.close()
        if self._ended:
            raise StopIteration
        for batch in self._batches:
            if not batch.num_rows:
                continue
            if self._left is not None:
                batch = batch.slice(0, self._left)
                self._left -= batch.num_rows
                if not self._left:
                    self.close()
            return self._convert(batch)
        self._finish()
        raise StopIteration

    def _finish(self) -> None:
        """Waits until the end of the job is stored, which may follow its last row. Raises JobFailed
        or JobCanceled unless it has FINISHED.
        """
        self._ended = True
        details = deque(self._client.watch_job(self.job_id), maxlen=1).pop()
        if self._output is not None and details.status.globally_terminal:
            self._output.is_complete(OUTPUT_END_S)
        raise_unless_finished(details)
        say_what_was_dropped(details)

    def first(self, limit: int) -> pa.Table:
        """Returns the first rows as a table, at most `limit` of them; waits for them, or for the
        end of the job. If the job restarts before that, its rows are read again from the start.

        Raises JobFailed or JobCanceled if the job does not end FINISHED.
        """
        table = self._client.fetch_table(self.job_id, self.operator_id, limit=limit)
        if table.num_rows < limit:
            self._finish()
        return table

    def close(self) -> None:
        """Cancels a running job and waits for its end. May be called twice. Raises
        ClusterUnreachable.
        """
        if self._ended:
            return
        try:
            self._client.cancel(self.job_id)
        except ClusterUnreachable:
            raise
        except FiresteelError:
            pass  # it has just ended
        self._ended = True
        for _ in self._client.watch_job(self.job_id):
            pass
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> CollectedBatches[Batch]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def run_collecting(
    job_graph: JobGraph,
    operator_id: str,
    context: ExecutionContext,
    kind: BatchKind,
    submitted: Callable[[], None],
    limit: int | None = None,
) -> CollectedBatches[Any]:
    """Submits the job, calls `submitted`, and returns immediately. The job is cancelled when
    `limit` rows have been read.

    Raises the error of a failed submission.
    """
    context.executed.append(job_graph.job_id)
    if context.mode == "plan-only":
        if context.on_job_graph is not None:
            context.on_job_graph(job_graph)
        raise StopProgram
    if not context.attached:
        raise FiresteelError(
            "the program of a detached job cannot read its rows:"
            " run it without -d, or use another sink"
        )
    client = context.client()
    with context.cancelling_when_interrupted(client, job_graph.job_id):
        job_id = context.submit(client, job_graph)
        submitted()
        if context.on_submitted is not None:
            context.on_submitted(job_id, job_graph)
    zone = job_graph.config.get(SESSION_TIME_ZONE) or context.conf.spark().get(SESSION_TIME_ZONE)
    in_pandas = functools.partial(_pandas, zone=zone or "UTC")
    convert = in_pandas if kind == "pandas" else _arrow
    output = context.output_of(job_id)
    batches = CollectedBatches(client, job_id, operator_id, convert, output, limit)
    context.collecting[:] = [other for other in context.collecting if not other.ended]
    context.collecting.append(batches)
    return batches


def first_rows(batches: CollectedBatches[pa.RecordBatch], limit: int) -> pa.Table:
    """Returns the first rows of a job as a table, at most `limit` of them, and cancels the job.

    Raises JobFailed or JobCanceled if the job ends earlier in this way.
    """
    with batches:
        return batches.first(limit)


def _arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _pandas(batch: pa.RecordBatch, zone: str) -> pd.DataFrame:
    """Converts like PySpark's toPandas: TIMESTAMPs are local to `zone`, without a zone, at any
    depth.
    """
    frame = batch.to_pandas()
    for index, column in enumerate(in_zone(batch, zone).columns):
        if pa.types.is_timestamp(column.type) and column.type.tz:
            frame.isetitem(index, pc.local_timestamp(column).to_pandas())
        elif has_moments(column.type):
            from pyspark.sql.conversion import ArrowArrayToPandasConversion
            from pyspark.sql.pandas.types import from_arrow_type

            kind = from_arrow_type(column.type, prefer_timestamp_ntz=True)
            local = ArrowArrayToPandasConversion.convert(column, kind, timezone=zone)
            frame.isetitem(index, local)
    return frame
