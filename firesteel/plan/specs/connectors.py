"""Sources and sinks: the connector's description, and what the program adds to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from firesteel.plan.specs.watermarks import WatermarkAlignmentSpec, WatermarkSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """`source` is the connector's description, such as firesteel.connectors.FileSource."""

    source: Any
    watermarks: WatermarkSpec | None = None
    alignment: WatermarkAlignmentSpec | None = None
    side_output_tags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSpec:
    """`sink` is the connector's description, such as firesteel.connectors.FileSink."""

    sink: Any
