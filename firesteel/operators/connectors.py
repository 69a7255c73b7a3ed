"""Sources and sinks: the connector's description, and the program's settings for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from firesteel.connectors.python_source import PythonSource
from firesteel.connectors.sink import Sink
from firesteel.connectors.source import CoordinatorOptions, Source, SparkRead
from firesteel.operators.spec import Spec, WatermarkAlignmentSpec
from firesteel.operators.watermarks import WatermarkSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec(Spec):
    """The arguments of `Environment.from_source`, and the tasks of the source besides reading."""

    source: Source
    watermarks: WatermarkSpec | None = None
    watermark_alignment: WatermarkAlignmentSpec | None = None
    reports_idle: bool = False  # it is idle once it has read everything that is available

    uses_pandas = False
    sets_times = True
    begins_event_time = True

    @property
    def bounded(self) -> bool:
        endless = getattr(self.source, "end", 0) is None
        return not self.watched and not endless and bool(getattr(self.source, "bounded", True))

    @property
    def watched(self) -> bool:
        """Whether the source waits for more files: it is idle while it waits."""
        return getattr(self.source, "watch_s", None) is not None

    @property
    def ends_at_run_time(self) -> bool:
        """Whether only its reader determines whether it ends."""
        return isinstance(self.source, PythonSource)

    @property
    def runs_on_spark(self) -> bool:
        return self.source.spark_read is SparkRead.ALWAYS

    @property
    def side_output_tags(self) -> frozenset[str]:
        return self.source.side_output_tags

    @property
    def emits_watermarks(self) -> bool:
        return self.watermarks is not None

    def time_advances(self, before: bool) -> bool:
        return self.watermarks is not None or not self.bounded  # if unbounded, it may become idle

    def in_batch(self) -> Self:
        return replace(self, watermark_alignment=None)

    @property
    def fixed_parallelism(self) -> int | None:
        return self.source.fixed_parallelism

    def coordinator(self, parallelism: int, *, read_by_spark: bool) -> CoordinatorOptions | None:
        return self.source.coordinator(parallelism, read_by_spark=read_by_spark)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSpec(Spec):
    """The argument of `DataStream.sink_to`."""

    sink: Sink

    is_sink = True
    uses_pandas = False
    sees_each_update = True

    def coordinator(self, parallelism: int, *, read_by_spark: bool) -> CoordinatorOptions | None:
        return self.sink.coordinator
