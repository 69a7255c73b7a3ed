"""One binary or string column, unchanged."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from firesteel.errors import FiresteelError
from firesteel.operator import RuntimeContext


class RawColumn:
    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._index = -1

    def open(self, context: RuntimeContext, schema: pa.Schema) -> None:
        if len(self._columns) != 1:
            raise FiresteelError(
                f"{context.operator_name}: Raw() writes one column, not {len(self._columns)}: "
                f"{', '.join(self._columns)}; choose one, or another format such as Json()"
            )
        (name,) = self._columns
        kind = schema.field(name).type
        if not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
            raise FiresteelError(
                f"{context.operator_name}: Raw() writes a binary or string column, but {name!r} is "
                f"{kind}; cast it to string, or choose another format such as Json()"
            )
        self._index = schema.get_field_index(name)

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        return batch.column(self._index).cast(pa.binary())

    def close(self) -> None: ...
