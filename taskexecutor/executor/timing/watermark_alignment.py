"""The source's side of watermark alignment. The coordinator's side is in
jobmaster.core.coordinators.

Observes the watermarks that an operator emits, reports them to the JobMaster, and pauses the task
while it is past the latest limit. The first limit precedes all times, so nothing is read after the
first watermark until the group is known. A unit of reading, such as a split of a Spark source, is
not divided.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa

from firesteel.common.operator_messages import WatermarkReported
from firesteel.elements import MAX_TIMESTAMP_US, MIN_TIMESTAMP_US, Watermark
from firesteel.operators import WatermarkAlignmentSpec
from taskexecutor.executor.timing.watermarks import ValveEvent

# A source reports immediately once its event time has advanced by this part of the maximum drift.
REPORT_AT_DRIFT_FRACTION = 1 / 4


class WatermarkAlignment:
    """A `chain.output.Target`. Reports once per update interval, and immediately when the source
    pauses, ends, becomes idle or becomes active.

    It also reports immediately when event time has advanced by a part of the drift: the next split
    may take long, no timer fires while it is read, and the other sources must not wait for more
    than that part.

    `call_at(ms)` must lead to a call of `on_timer`; `now_ms` is the wall clock, `now_ns` a
    monotonic clock.
    """

    def __init__(
        self,
        spec: WatermarkAlignmentSpec,
        send: Callable[[WatermarkReported], None],
        call_at: Callable[[int], None],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._spec = spec
        self._send = send
        self._call_at = call_at
        self._now_ms = now_ms
        self._now_ns = now_ns
        self._watermark_us = MIN_TIMESTAMP_US
        self._idle = False
        self._limit_us = MIN_TIMESTAMP_US
        self._reported_us = MIN_TIMESTAMP_US
        self._unreported = False  # a change waits for the next report
        self._timer_set = False
        self._stopped_since_ns: int | None = None
        self._stopped_ns = 0  # total of earlier pauses

    @property
    def stopped(self) -> bool:
        """Returns whether the task must take no input now."""
        return self._stopped_since_ns is not None

    @property
    def stopped_ms(self) -> float:
        """Returns the total time of all pauses. Safe from any thread."""
        since_ns, before_ns = self._stopped_since_ns, self._stopped_ns
        return (before_ns + (0 if since_ns is None else max(0, self._now_ns() - since_ns))) / 1e6

    @property
    def drift_ms(self) -> float:
        """Returns how far the source was ahead of the group's slowest at the JobMaster's latest
        message; 0 if unknown.
        """
        if MIN_TIMESTAMP_US in (self._watermark_us, self._limit_us) or MAX_TIMESTAMP_US in (
            self._watermark_us,
            self._limit_us,
        ):
            return 0.0
        return max(0, self._watermark_us - (self._limit_us - self._spec.max_drift_us)) / 1000

    # -- from the operator

    def batch(self, batch: pa.RecordBatch) -> None:
        """Ignored: only event time counts."""

    def event(self, event: ValveEvent) -> None:
        if isinstance(event, Watermark):
            self._watermark_us = event.timestamp_us
            self._update_stopped()
            far = (
                self._watermark_us - self._reported_us
                >= self._spec.max_drift_us * REPORT_AT_DRIFT_FRACTION
            )
            self._changed(immediately=far or self.stopped or self._ended)
        else:
            self._idle = event.idle
            self._changed(immediately=True)

    def finished(self) -> None:
        """Does nothing: MAX_WATERMARK came before."""

    # -- from the JobMaster

    def limit(self, limit_us: int) -> None:
        self._limit_us = limit_us
        self._update_stopped()

    def report(self) -> None:
        self._unreported, self._reported_us = False, self._watermark_us
        self._send(WatermarkReported(watermark_us=self._watermark_us, idle=self._idle))

    # -- inside

    def on_timer(self) -> None:
        self._timer_set = False
        if self._unreported:
            self._changed(immediately=True)

    @property
    def _ended(self) -> bool:
        return self._watermark_us == MAX_TIMESTAMP_US

    def _changed(self, *, immediately: bool) -> None:
        if self._timer_set and not immediately:
            self._unreported = True
            return
        self.report()
        if not self._timer_set:
            self._timer_set = True
            self._call_at(self._now_ms() + max(1, self._spec.update_interval_us // 1000))

    def _update_stopped(self) -> None:
        stopped = self._watermark_us > self._limit_us and not self._ended
        if stopped and self._stopped_since_ns is None:
            self._stopped_since_ns = self._now_ns()
        elif not stopped and self._stopped_since_ns is not None:
            self._stopped_ns += self._now_ns() - self._stopped_since_ns
            self._stopped_since_ns = None
