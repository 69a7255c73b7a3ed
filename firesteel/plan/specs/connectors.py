"""Sources and sinks: the connector's description, and what the program adds to it."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.connectors.sink import Sink
from firesteel.connectors.source import Source
from firesteel.plan.specs.watermarks import WatermarkAlignmentSpec, WatermarkSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """What `Environment.from_source` was given, and what the source does beside reading."""

    source: Source
    watermarks: WatermarkSpec | None = None
    watermark_alignment: WatermarkAlignmentSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSpec:
    """What `DataStream.sink_to` was given."""

    sink: Sink
