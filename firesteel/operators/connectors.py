"""Sources and sinks: the connector's description, and the program's settings for it."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.connectors.sink import Sink
from firesteel.connectors.source import Source
from firesteel.operators.watermarks import WatermarkAlignmentSpec, WatermarkSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """The arguments of `Environment.from_source`, and the tasks of the source besides reading."""

    source: Source
    watermarks: WatermarkSpec | None = None
    watermark_alignment: WatermarkAlignmentSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSpec:
    """The argument of `DataStream.sink_to`."""

    sink: Sink
