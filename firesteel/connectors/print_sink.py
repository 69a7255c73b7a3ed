"""PrintSink: rows to the slot's log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from firesteel.connectors.sink import Sink


@dataclass(frozen=True, slots=True)
class PrintSink(Sink):
    """Prints the rows to the slot's log, one line each."""

    runtime: ClassVar[str] = "taskexecutor.executor.connectors.print_sink:PrintSinkRuntime"

    prefix: str = ""
