"""CollectSink: sends rows to the client that runs the job."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.connectors.sink import Sink
from firesteel.connectors.source import CoordinatorOptions


@dataclass(frozen=True, slots=True)
class CollectSink(Sink):
    """Sends the rows to the client that runs the job: see `DataStream.execute_and_collect`."""

    @property
    def coordinator(self) -> CoordinatorOptions:
        return CoordinatorOptions("collect")
