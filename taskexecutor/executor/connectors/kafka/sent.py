"""The metrics of a KafkaSink, under Flink's names."""

from __future__ import annotations

from collections.abc import Callable

from firesteel.operator import RuntimeContext


class Sent:
    def __init__(self, context: RuntimeContext) -> None:
        self._context = context
        self._records = context.counter("numRecordsSend")
        self._bytes = context.counter("numBytesSend")

    def count(self, records: int, size_bytes: int) -> None:
        self._records.inc(records)
        self._bytes.inc(size_bytes)

    def show_round_trip(self, read_ms: Callable[[], float]) -> None:
        self._context.gauge("currentSendTime", read_ms)
