"""The interface of encoders."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from firesteel.operator import RuntimeContext


class Encoder(Protocol):
    """Encodes the rows of one subtask. All calls are made on the task's thread."""

    def open(self, context: RuntimeContext, schema: pa.Schema) -> None:
        """Acquires resources. `schema` describes the rows. Raises FiresteelError if the format
        cannot hold them.
        """

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        """Returns the bytes of each row. Raises FiresteelError that names the first row without an
        encoding. May wait for a schema registry.
        """

    def close(self) -> None:
        """Releases all resources. Called once, on every path."""
