"""The common part of all decoders of values: null values, metadata, and the order of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from firesteel.errors import FiresteelError
from firesteel.operator import RuntimeContext
from taskexecutor.executor.connectors.kafka.decoders.decoder import Bad, Decoded
from taskexecutor.executor.connectors.kafka.records import RECORDS_WITH_HEADERS, VALUE


class Rows(NamedTuple):
    """The rows of some values."""

    rows: pa.RecordBatch
    # The index of each row's value, ascending; None: row i is of value i.
    places: np.ndarray | None = None
    errors: Mapping[int, str] = {}


class Values(ABC):
    """Decodes values that are not null."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns of the rows; known once open."""

    @abstractmethod
    def open(self, context: RuntimeContext) -> None: ...

    @abstractmethod
    def rows(self, values: pa.BinaryArray) -> Rows: ...

    def close(self) -> None:  # noqa: B027 - optional
        """Releases all resources; called once, on every path."""


class ValueDecoder:
    """A Decoder. A record without a value has no row: in a compacted topic, it deletes a key."""

    def __init__(self, values: Values, metadata: Sequence[str]) -> None:
        self._values = values
        self._metadata = list(metadata)

    @property
    def schema(self) -> pa.Schema:
        return with_metadata(self._values.schema, self._metadata)

    def open(self, context: RuntimeContext) -> None:
        self._values.open(context)
        self._schema = self.schema

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        values = batch.column(batch.schema.get_field_index(VALUE))
        present = None
        if values.null_count:
            present = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
            values = values.drop_null()
        rows, places, errors = self._values.rows(values)
        bad = None
        if errors:
            indices = np.array(sorted(errors), np.int32)
            texts = [errors[index] for index in indices.tolist()]
            records = indices if present is None else present[indices]
            bad = Bad(indices=pa.array(records, pa.int32()), errors=texts)
        if present is not None:
            places = present if places is None else present[places]
        found = None if places is None else pa.array(places, pa.int32())
        if self._metadata:
            given = batch.select(self._metadata)
            if found is not None:
                given = given.take(found)
            rows = pa.RecordBatch.from_arrays([*rows.columns, *given.columns], schema=self._schema)
        return Decoded(rows=rows, records=found, bad=bad)

    def close(self) -> None:
        self._values.close()


def with_metadata(schema: pa.Schema, metadata: Sequence[str]) -> pa.Schema:
    """Adds columns of the records. Raises FiresteelError for names that the format has."""
    for name in metadata:
        if name in schema.names:
            raise FiresteelError(
                f"the format and the metadata both have a column {name!r}; omit it from metadata, "
                "or rename the format's column"
            )
        schema = schema.append(RECORDS_WITH_HEADERS.field(name))
    return schema


def chosen(rows: pa.RecordBatch, errors: Mapping[int, str]) -> Rows:
    """Returns all rows, one of each value, but those of unreadable values."""
    if not errors:
        return Rows(rows)
    keep = np.ones(rows.num_rows, np.bool_)
    keep[list(errors)] = False
    places = np.flatnonzero(keep)
    return Rows(rows.take(pa.array(places)), places, errors)
