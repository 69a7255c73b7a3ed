"""The interface of decoders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from firesteel.operator import RuntimeContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """Unreadable records, in ascending order. They have no rows."""

    indices: pa.Int32Array  # in the batch of records
    errors: Sequence[str]  # for users; each names the reason and shows the record, shortened


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    rows: pa.RecordBatch  # in the order of the records
    # int32: the index of each row's record, ascending. None: row i is of record i. A record may
    # have no row, such as an unreadable one, or several, such as an update of a changelog.
    records: pa.Int32Array | None
    bad: Bad | None


class Decoder(Protocol):
    """Decodes the records of one subtask. All calls are made on the task's thread."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows. Known once the decoder is open."""

    def open(self, context: RuntimeContext) -> None:
        """Acquires resources. Raises FiresteelError if the format does not suit its options."""

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        """Decodes records, which have the columns of `records.RECORDS`, and may have headers.

        May wait for a schema registry. Raises FiresteelError if it does not respond.
        """

    def close(self) -> None:
        """Releases all resources. Called once, on every path."""
