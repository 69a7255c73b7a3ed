"""The DataFrames of the program that a function of `foreachBatch` refers to.

The pickled function contains their plans. The front finds the plans without running any of the
function's code, and reads their rows; in the slot, the rows take the places of the DataFrames.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel.common.logs import get_logger
from firesteel.errors import InvalidProgram

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

MAX_BYTES = 1_000_000_000
FRAME = ("pyspark.sql.connect.dataframe", "DataFrame")
# What plans consist of. Everything else in the pickle is skipped.
_PARTS = ("pyspark.sql.connect", "pyspark.sql.types", "pyarrow", "datetime", "decimal", "uuid")
_BUILTINS = ("list", "dict", "set", "frozenset", "bytearray", "tuple", "object", "slice", "range")
_SESSION = "pyspark.sql.connect.session"

log = get_logger(__name__)


@dataclass(frozen=True)
class OuterFrame:
    """The rows of a DataFrame."""

    rows: pa.Table
    schema: StructType

    def frame(self, session: SparkSession) -> DataFrame:
        return local_frame(session, self.rows, self.schema)


def local_frame(session: SparkSession, rows: pa.Table, schema: StructType) -> DataFrame:
    """Returns rows as a DataFrame with this schema, whose names may repeat."""
    from pyspark.sql.types import StructField, StructType

    names = [f"c{number}" for number in range(len(schema))]
    fields = [
        StructField(name, field.dataType, field.nullable)
        for name, field in zip(names, schema, strict=True)
    ]
    frame = session.createDataFrame(rows.rename_columns(names), StructType(fields))
    return frame.toDF(*schema.names)


def outer_frames(data: bytes, read: Callable[[bytes], OuterFrame]) -> tuple[OuterFrame, ...]:
    """Returns the DataFrames in the pickle of a function, in the order in which it is unpickled.
    `read` takes a serialised `Relation`.
    """
    return tuple(read(_relation(plan)) for plan in _plans(data))


def _plans(data: bytes) -> Sequence[Any]:
    if FRAME[0].encode() not in data:
        return ()
    scan = _Scan(io.BytesIO(data))
    try:
        scan.load()
    except Exception:  # the slot then refuses the DataFrames
        log.info("a function is not searched for DataFrames", exc_info=True)
        return ()
    return scan.plans


def _relation(plan: Any) -> bytes:
    try:
        content: bytes = plan.plan(None).SerializeToString()
    except Exception as error:
        raise InvalidProgram(
            "the function of foreachBatch refers to a DataFrame outside of it that cannot be read"
            " ahead: it uses Python functions or a cached result; read it inside the function, with"
            " batch.sparkSession"
        ) from error
    return content


class _Skipped:
    """Stands for any object that is not part of a plan."""

    def __new__(cls, *_: Any, **__: Any) -> _Skipped:
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *_: Any, **__: Any) -> _Skipped:
        return _Skipped()

    def __setstate__(self, state: Any) -> None: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, value: Any) -> None: ...

    def __reduce__(self) -> Any:
        raise pickle.PicklingError("it is not part of a plan")


def _skipped_class(*_: Any) -> type[_Skipped]:
    return _Skipped


class _Scan(pickle.Unpickler):
    """Collects the plans of DataFrames. Only classes of plans are imported."""

    def __init__(self, data: io.BytesIO) -> None:
        super().__init__(data)
        self.plans: list[Any] = []

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == FRAME:
            return self._found
        if "skeleton" in name or name == "_builtin_type":  # of cloudpickle
            return _skipped_class
        if module == "builtins" and name in _BUILTINS:
            return super().find_class(module, name)
        if module != _SESSION and module.startswith(_PARTS):
            return super().find_class(module, name)
        return _Skipped

    def _found(self, plan: Any, *_: Any) -> _Skipped:
        self.plans.append(plan)
        return _Skipped()
