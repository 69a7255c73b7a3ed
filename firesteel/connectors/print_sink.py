"""PrintSink: prints rows to the slot's log, and from there to the terminal."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.connectors.sink import Sink


@dataclass(frozen=True, slots=True)
class PrintSink(Sink):
    """Prints the rows, one line each, as `DataStream.print` describes."""

    prefix: str = ""
