"""Checks that a stream keeps one schema, and derives batch sizes from it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as types

from taskexecutor.executor.exchange.errors import SchemaChanged

# The weight of even an empty batch, so that a limit in bytes also limits the number of batches.
MIN_BATCH_BYTES = 64


class StreamSchema:
    """The schema of a producer's output: that of its first batch."""

    def __init__(self, partition: object) -> None:
        """`partition` is named in errors."""
        self.coalesces = False  # whether small batches may be joined; set with the first batch
        self._partition = partition
        self._schema: pa.Schema | None = None
        self._row_bits: int | None = None

    def check(self, batch: pa.RecordBatch) -> None:
        """Raises SchemaChanged if the batch's schema differs."""
        if self._schema is None:
            self._schema = batch.schema
            self._row_bits = fixed_row_bits(batch.schema)
            self.coalesces = len(batch.schema) > 0 and all(
                can_concatenate(kind) for kind in batch.schema.types
            )
        elif not batch.schema.equals(self._schema):
            raise SchemaChanged(different_schema(str(self._partition), self._schema, batch.schema))

    def size_bytes(self, batch: pa.RecordBatch) -> int:
        """Returns the weight of a batch of this schema, for credit and buffers."""
        # `nbytes` visits every buffer, which costs more than the rest of sending a small batch.
        size_bytes: int = (
            batch.nbytes if self._row_bits is None else batch.num_rows * self._row_bits // 8
        )
        return max(MIN_BATCH_BYTES, size_bytes)


def different_schema(partition: str, first: pa.Schema, other: pa.Schema) -> str:
    changed = [str(field) for field in other if field not in list(first)] or [
        "the order of the columns"
    ]
    missing = [str(field) for field in first if field not in list(other)]
    return (
        f"the schema of a batch of the {partition} differs from its first batch: unexpected"
        f" {', '.join(changed)}; expected {', '.join(missing) or 'the same columns'}. All batches"
        " of a stream must have one schema."
    )


def can_concatenate(kind: pa.DataType) -> bool:
    """Returns whether joining batches is a plain copy. Dictionaries would have to be merged, and
    could overflow.
    """
    if types.is_nested(kind):
        return not types.is_union(kind) and all(
            can_concatenate(kind.field(i).type) for i in range(kind.num_fields)
        )
    return not (
        types.is_dictionary(kind)
        or types.is_run_end_encoded(kind)
        or isinstance(kind, pa.BaseExtensionType)
    )


def fixed_row_bits(schema: pa.Schema) -> int | None:
    """Returns the bits per row including validity, or None unless every column has a fixed
    width.
    """
    if not all(
        types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind)
        for kind in schema.types
    ):
        return None
    return sum(int(kind.bit_width) + 1 for kind in schema.types)
