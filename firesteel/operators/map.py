"""Functions of the program over batches and rows.

A `schema` is a DDL string, a StructType or an Arrow schema; None means the schema of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from firesteel.operators.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class MapInArrowSpec(Spec):
    """PySpark's mapInArrow contract: an iterator of batches to an iterator of batches."""

    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    schema: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoMapInArrowSpec(Spec):
    """Calls one function per input; both yield batches of `schema`."""

    first: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    second: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    schema: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MapInPandasSpec(Spec):
    """PySpark's mapInPandas contract: an iterator of DataFrames to an iterator of DataFrames."""

    function: Callable[[Iterator[Any]], Iterator[Any]]
    schema: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRowsSpec(Spec):
    """Calls `function(Row)`, which returns one row or, if `flat` is set, any number of rows."""

    function: Callable[[Any], Any]
    schema: Any = None
    flat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSpec(Spec):
    """Calls `function(batch)`, which returns one boolean per row: whether to keep it."""

    function: Callable[[pa.RecordBatch], Any]
