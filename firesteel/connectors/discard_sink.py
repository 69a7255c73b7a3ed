"""DiscardSink: the end of a stream whose rows are not needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from firesteel.connectors.sink import Sink, SinkWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from firesteel.operator import RuntimeContext


@dataclass(frozen=True, slots=True)
class DiscardSink(Sink):
    """Drops the rows: for streams whose operators write data themselves, and for measurements."""

    def create_writer(self, context: RuntimeContext) -> SinkWriter:
        return _DiscardWriter()


class _DiscardWriter(SinkWriter):
    def write(self, batch: pa.RecordBatch) -> None:
        pass

    def prepare(self) -> tuple[()]:
        return ()
