"""MemoryTable: the rows of a sink as a table of the front, which reads them as they arrive."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from firesteel.client.client import Client
from firesteel.errors import FiresteelError
from firesteel.operators.batches import BATCH, CHECKPOINT

_MARKS = (BATCH, CHECKPOINT)


class Batches:
    """Separates rows into batches. The rows of a batch count once its mark has arrived: without
    `replaces`, they follow those of earlier batches, and with it, they take their place.
    """

    def __init__(self, *, replaces: bool) -> None:
        self._replaces = replaces
        # Each with the checkpoint that ended its batch; None: the end of the job.
        self._complete: list[tuple[int | None, pa.RecordBatch]] = []
        self._arrived: list[pa.RecordBatch] = []  # of the batch whose mark is yet to come
        self.version = 0  # increases with the rows that count
        self.checkpoint_id = 0  # the last one whose rows all count
        self.batch_id = -1  # the last one

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds the next rows of the sink, with their columns of marks."""
        marks = batch.column(CHECKPOINT).is_valid() if batch.num_rows else pa.array([], pa.bool_())
        numbers = batch.column(BATCH)
        start = 0
        for index, marked in enumerate(marks.to_pylist()):
            if not marked and not numbers[index].is_valid:
                continue
            self._keep(batch.slice(start, index - start))
            start = index + 1
            self._end_batch(numbers[index].as_py(), batch.column(CHECKPOINT)[index].as_py())
        self._keep(batch.slice(start))

    def _keep(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._arrived.append(batch.drop_columns(list(_MARKS)))

    def _end_batch(self, batch_id: int | None, checkpoint_id: int | None) -> None:
        if batch_id is not None:
            arrived, self._arrived = [(checkpoint_id, rows) for rows in self._arrived], []
            self._complete = arrived if self._replaces else [*self._complete, *arrived]
            self.batch_id = batch_id
            self.version += 1
        if checkpoint_id is not None:
            self.checkpoint_id = checkpoint_id

    def take(self, until: int | None) -> list[tuple[int | None, pa.RecordBatch]]:
        """Returns the rows of batches up to a checkpoint, or all, with the checkpoint that ended
        their batch; they count no more.
        """

        def is_wanted(ended: int | None) -> bool:
            return until is None or (ended is not None and ended <= until)

        taken = [each for each in self._complete if is_wanted(each[0])]
        self._complete = [each for each in self._complete if not is_wanted(each[0])]
        return taken

    def table(self, schema: pa.Schema) -> pa.Table:
        """Returns the rows that count."""
        rows = [rows for _, rows in self._complete]
        return pa.Table.from_batches(rows, rows[0].schema) if rows else schema.empty_table()


class MemoryTable:
    """Reads in a thread. `close` it after the job has ended."""

    def __init__(
        self,
        client: Client,
        job_id: str,
        operator_id: str,
        *,
        name: str,
        schema: StructType,
        output_mode: str,
    ) -> None:
        """`schema` is that of the query; its names may repeat."""
        self.name = name
        self.schema = schema
        numbered = [StructField(f"{number}", field.dataType) for number, field in enumerate(schema)]
        self._arrow_schema = to_arrow_schema(StructType(numbered), timezone="UTC")
        self._batches = Batches(replaces=output_mode == "complete")
        self._changed = threading.Condition()
        self._ended = False
        self._failure: Exception | None = None
        self._rows: Iterator[pa.RecordBatch] = client.fetch_results(job_id, operator_id)
        self._shown = -1
        self._thread = threading.Thread(target=self._read, name=f"memory-{name}", daemon=True)
        self._thread.start()

    def changed_rows(self) -> pa.Table | None:
        """Returns all rows, at the first call and whenever they have changed since the last one."""
        with self._changed:
            if self._batches.version == self._shown:
                return None
            self._shown = self._batches.version
            return self._batches.table(self._arrow_schema)

    def take_rows(self, until: int | None) -> list[tuple[int | None, pa.RecordBatch]]:
        """As `Batches.take`."""
        with self._changed:
            return self._batches.take(until)

    def wait(self, checkpoint_id: int | None = None, timeout_s: float | None = None) -> None:
        """Waits until the table has all rows up to a complete checkpoint, or up to the job's end.
        Raises TimeoutError, or FiresteelError if the rows cannot be read.
        """

        def is_there() -> bool:
            if self._ended:
                return True
            return checkpoint_id is not None and self._batches.checkpoint_id >= checkpoint_id

        with self._changed:
            if not self._changed.wait_for(is_there, timeout_s):
                raise TimeoutError(f"the rows of {self.name!r} have not arrived yet")
            if self._failure is not None:
                raise FiresteelError(f"the rows of {self.name!r}: {self._failure}")

    def close(self) -> None:
        """Waits for the thread, which ends with the job."""
        self._thread.join()

    def _read(self) -> None:
        failure: Exception | None = None
        try:
            for batch in self._rows:
                with self._changed:
                    self._batches.add(batch)
                    self._changed.notify_all()
        except Exception as error:
            failure = error
        with self._changed:
            self._failure, self._ended = failure, True
            self._changed.notify_all()
