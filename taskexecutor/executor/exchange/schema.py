"""A stream has one schema: how the exchange checks it, and what it derives from it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as types


def different_schema(partition: str, first: pa.Schema, other: pa.Schema) -> str:
    changed = [str(field) for field in other if field not in list(first)] or [
        "the order of the columns"
    ]
    missing = [str(field) for field in first if field not in list(other)]
    return (
        f"the {partition} began with another schema than this batch has: unexpected"
        f" {', '.join(changed)}; expected {', '.join(missing) or 'the same columns'}. All batches"
        " of a stream must have one schema."
    )


def can_concatenate(kind: pa.DataType) -> bool:
    """Whether joining batches is a plain copy. Dictionaries would have to be merged, and could
    overflow.
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
    """Bits per row with validity, if every column is of fixed width."""
    if not all(
        types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind)
        for kind in schema.types
    ):
        return None
    return sum(int(kind.bit_width) + 1 for kind in schema.types)
