"""Copies rows that a task sends, and writes them as JSON. The task's thread copies at most as many
rows as were requested; another thread writes them.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from firesteel.common.inspections import SampledColumn, SampledRows
from firesteel.text import text_of

MAX_CHARS = 200  # of one text; twice as many of bytes in hexadecimal
MAX_ITEMS = 20  # of one list, map or struct
MAX_DEPTH = 4
MAX_ROW_CHARS = 20_000
MAX_COLUMNS = 500
MAX_COPIED_BYTES = 4 * 2**20
_NOT_FINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}
_MAX_EXACT = 2**53 - 1  # larger integers are not exact in JavaScript


class RowTap:
    """Takes the first rows of the batches that pass. The task's thread calls it with each batch; it
    never raises.
    """

    def __init__(self, count: int) -> None:
        self._missing = count
        self._copied_bytes = 0
        self._batches: list[pa.RecordBatch] = []
        self.full = threading.Event()
        self.failure: Exception | None = None

    def __call__(self, batch: pa.RecordBatch) -> None:
        if self.full.is_set():
            return
        try:
            self._take(batch)
        except Exception as error:
            self.failure = error
            self.full.set()

    def _take(self, batch: pa.RecordBatch) -> None:
        rows = min(self._missing, batch.num_rows)
        while rows > 1 and batch.slice(0, rows).nbytes > MAX_COPIED_BYTES:
            rows //= 2
        # A slice would keep the whole batch, and its memory may be reused.
        copied = batch.take(pa.array(range(rows), pa.int32()))
        self._batches.append(copied)
        self._copied_bytes += copied.nbytes
        self._missing -= rows
        if not self._missing or self._copied_bytes >= MAX_COPIED_BYTES:
            self.full.set()

    @property
    def batches(self) -> Sequence[pa.RecordBatch]:
        """Raises the error of a batch that could not be copied."""
        if self.failure is not None:
            raise self.failure
        return tuple(self._batches)


def sampled_rows(batches: Sequence[pa.RecordBatch], schema: pa.Schema | None) -> SampledRows:
    """`schema`: of the columns if no row has come."""
    if batches:
        schema = batches[0].schema
    if schema is None:
        return SampledRows((), (), "no rows have passed, and their columns are not known")
    columns = [SampledColumn(text_of(f.name), str(f.type)) for f in list(schema)[:MAX_COLUMNS]]
    rows = [row for batch in batches for row in _rows(batch)]
    notes = []
    if len(schema) > MAX_COLUMNS:
        notes.append(f"the first {MAX_COLUMNS} of {len(schema)} columns")
    if not rows:
        notes.append("no rows have passed")
    return SampledRows(columns, rows, "; ".join(notes))


def _rows(batch: pa.RecordBatch) -> list[str]:
    columns = [[json_value(value) for value in column] for column in batch.columns[:MAX_COLUMNS]]
    return [_row([column[index] for column in columns]) for index in range(batch.num_rows)]


def _row(values: list[Any]) -> str:
    """A row of too many characters keeps its first values."""
    texts = [json.dumps(value, allow_nan=False) for value in values]
    left = MAX_ROW_CHARS
    for index, text in enumerate(texts):
        left -= len(text)
        if left < 0:
            texts[index:] = ['"…"'] * (len(texts) - index)
            break
    return f"[{','.join(texts)}]"


def json_value(scalar: pa.Scalar, depth: int = 0) -> Any:
    """Returns a short JSON value: bytes in hexadecimal, times as ISO 8601, large integers, decimals
    and numbers that JSON lacks as text.
    """
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if pa.types.is_dictionary(kind):
        return json_value(scalar.value, depth)
    if pa.types.is_nested(kind):
        if depth >= MAX_DEPTH:
            return "…"
        return _nested(scalar, depth + 1)
    try:
        value = scalar.as_py()
    except (ValueError, OverflowError, ImportError):  # a time that Python does not have
        return f"{getattr(scalar, 'value', '?')} as {kind}"
    return _plain(value, kind)


def _nested(scalar: pa.Scalar, depth: int) -> Any:
    kind = scalar.type
    if pa.types.is_struct(kind):
        names = [field.name for field in kind][:MAX_ITEMS]
        return {text_of(name): json_value(scalar[i], depth) for i, name in enumerate(names)}
    values = scalar.values
    if values is None:
        return None
    items = [values[i] for i in range(min(len(values), MAX_ITEMS))]
    rest = len(values) - len(items)
    more = [f"… ({rest:,} more)"] if rest else []
    if pa.types.is_map(kind):
        pairs = {str(json_value(i[0], depth)): json_value(i[1], depth) for i in items}
        return {**pairs, **dict.fromkeys(more)}
    return [json_value(item, depth) for item in items] + more


def _plain(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _MAX_EXACT else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else _NOT_FINITE.get(value, "NaN")
    if isinstance(value, bytes):
        shown = value[:MAX_CHARS].hex()
        return shown if len(value) <= MAX_CHARS else f"{shown}… ({len(value):,} bytes)"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind):
        return str(value.isoformat())
    return _cut(text_of(value))


def _cut(text: str) -> str:
    if len(text) <= MAX_CHARS:
        return text
    return f"{text[:MAX_CHARS]}… ({len(text):,} characters)"
