"""Combines the watermarks and the idleness of several channels into one (pure).

The combined watermark is the minimum over the channels that count. A channel does not count while

* it is idle,
* it lags: it was idle, and has not caught up with the last emitted watermark,
* it is done: it has sent MAX_WATERMARK. (A done channel must not end event time for channels that
  are merely idle.)

When no channel counts but some are idle, the output is idle; when all are done, the output is
MAX_WATERMARK.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from firesteel.elements import MAX_TIMESTAMP_US, MIN_TIMESTAMP_US, StreamStatus, Watermark
from firesteel.errors import FiresteelError
from firesteel.operators.watermarks import MULTIPLE_WATERMARK_POLICY

ValveEvent = Watermark | StreamStatus
_NOTHING: tuple[ValveEvent, ...] = ()


class WatermarkValve:
    """Combines `channels` inputs into one output. Every method returns the events to emit, in
    order.
    """

    __slots__ = ("_active", "_caught_up", "_output_idle", "_output_us", "_watermarks_us")

    def __init__(self, channels: int) -> None:
        self._watermarks_us = [MIN_TIMESTAMP_US] * channels
        self._active = [True] * channels
        self._caught_up = [True] * channels  # implies active
        self._output_us = MIN_TIMESTAMP_US
        self._output_idle = False

    @property
    def watermark_us(self) -> int:
        """Returns the last emitted watermark."""
        return self._output_us

    @property
    def idle(self) -> bool:
        return self._output_idle

    def add_channel(self) -> int:
        """Adds a channel before anything was received, and returns its number."""
        self._watermarks_us.append(MIN_TIMESTAMP_US)
        self._active.append(True)
        self._caught_up.append(True)
        return len(self._active) - 1

    def on_watermark(self, channel: int, timestamp_us: int) -> tuple[ValveEvent, ...]:
        """Ignores watermarks of idle channels and watermarks that do not advance."""
        if not self._active[channel]:
            return _NOTHING
        before_us = self._watermarks_us[channel]
        if timestamp_us <= before_us:
            return _NOTHING
        self._watermarks_us[channel] = timestamp_us
        if not self._caught_up[channel]:
            if timestamp_us < self._output_us:
                return _NOTHING
            self._caught_up[channel] = True
        elif before_us > self._output_us and timestamp_us != MAX_TIMESTAMP_US:
            return _NOTHING  # it did not hold the others back
        return self._advance()

    def on_status(self, channel: int, idle: bool) -> tuple[ValveEvent, ...]:
        if idle == (not self._active[channel]):
            return _NOTHING
        if idle:
            self._active[channel] = False
            self._caught_up[channel] = False
            return self._advance()
        self._active[channel] = True
        self._caught_up[channel] = self._watermarks_us[channel] >= self._output_us
        if self._output_idle and not self._done(channel):
            self._output_idle = False
            return (StreamStatus(False), *self._advance())
        return _NOTHING

    def on_end(self, channel: int) -> tuple[ValveEvent, ...]:
        """Removes a channel that has sent all its data, so that it no longer holds others back."""
        self._active[channel] = True
        self._caught_up[channel] = True
        self._watermarks_us[channel] = MAX_TIMESTAMP_US
        return self._advance()

    def settle(self) -> tuple[ValveEvent, ...]:
        """Called at a barrier: every channel has been read up to it."""
        return _NOTHING

    def _done(self, channel: int) -> bool:
        return self._watermarks_us[channel] == MAX_TIMESTAMP_US

    def _advance(self) -> tuple[ValveEvent, ...]:
        lowest_us: int | None = None
        waiting = False  # a channel is active and not done, though it may lag
        idle_us: int | None = None  # the latest of the idle channels
        for watermark_us, active, caught_up in zip(
            self._watermarks_us, self._active, self._caught_up, strict=True
        ):
            if watermark_us == MAX_TIMESTAMP_US:
                continue
            if not active:
                idle_us = watermark_us if idle_us is None else max(idle_us, watermark_us)
            else:
                waiting = True
                if caught_up and (lowest_us is None or watermark_us < lowest_us):
                    lowest_us = watermark_us
        if waiting:
            return self._send_on(lowest_us)
        if idle_us is None:
            events = self._send_on(MAX_TIMESTAMP_US)
            if self._output_idle:
                self._output_idle = False
                return (StreamStatus(False), *events)
            return events
        if self._output_idle:
            return _NOTHING
        self._output_idle = True
        return (*self._send_on(idle_us), StreamStatus(True))

    def _send_on(self, timestamp_us: int | None) -> tuple[ValveEvent, ...]:
        if timestamp_us is None or timestamp_us <= self._output_us:
            return _NOTHING
        self._output_us = timestamp_us
        return (Watermark(timestamp_us),)


class SettledWatermark(WatermarkValve):
    """Combines channels from the same operator of a query, at barriers only. There, all of them
    have been read to the same point of the sources, so the result is the same in all consumers, and
    no row before the barrier comes after a watermark that it led to.

    If every channel has been idle since the last barrier, the sources have caught up: the watermark
    is the latest of all. Otherwise it is the earliest of the channels that have not been idle.
    """

    __slots__ = ("_caught", "_ended")

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self._caught = [False] * channels  # idle at some time since the last barrier
        self._ended = [False] * channels

    def on_watermark(self, channel: int, timestamp_us: int) -> tuple[ValveEvent, ...]:
        if timestamp_us == MAX_TIMESTAMP_US:
            return self.on_end(channel)
        self._watermarks_us[channel] = max(timestamp_us, self._watermarks_us[channel])
        return _NOTHING

    def on_status(self, channel: int, idle: bool) -> tuple[ValveEvent, ...]:
        self._active[channel] = not idle
        self._caught[channel] = self._caught[channel] or idle
        return _NOTHING

    def on_end(self, channel: int) -> tuple[ValveEvent, ...]:
        """Ends event time after the last channel, with no barrier to wait for."""
        self._ended[channel] = True
        if not all(self._ended) or self._output_us == MAX_TIMESTAMP_US:
            return _NOTHING
        return (
            *self._becomes(idle=False),
            *self._send_on(max(self._watermarks_us)),
            *self._send_on(MAX_TIMESTAMP_US),
        )

    def settle(self) -> tuple[ValveEvent, ...]:
        if all(self._ended):
            return _NOTHING
        behind_us = [
            watermark_us
            for watermark_us, caught, ended in zip(
                self._watermarks_us, self._caught, self._ended, strict=True
            )
            if not (caught or ended)
        ]
        self._caught = [not active for active in self._active]
        watermark_us = min(behind_us) if behind_us else max(self._watermarks_us)
        # Reports idleness even if it was idle before: rows have ended it downstream.
        return (
            *self._becomes(idle=False),
            *self._send_on(watermark_us),
            *self._becomes(idle=not behind_us),
        )

    def _becomes(self, *, idle: bool) -> tuple[ValveEvent, ...]:
        if idle == self._output_idle:
            return _NOTHING
        self._output_idle = idle
        return (StreamStatus(idle),)


class QueryWatermark(WatermarkValve):
    """Combines inputs that have separate watermarks into the watermark of a query: the minimum or
    the maximum of all inputs, whether or not they are idle. An input without a watermark has the
    least one.
    """

    __slots__ = ("_choose",)

    def __init__(self, choose: Callable[[Iterable[int]], int]) -> None:
        super().__init__(0)
        self._choose = choose

    def on_watermark(self, channel: int, timestamp_us: int) -> tuple[ValveEvent, ...]:
        if timestamp_us <= self._watermarks_us[channel]:
            return _NOTHING
        self._watermarks_us[channel] = timestamp_us
        return self._advance()

    def on_status(self, channel: int, idle: bool) -> tuple[ValveEvent, ...]:
        self._active[channel] = not idle
        return self._advance()

    def _advance(self) -> tuple[ValveEvent, ...]:
        open_us = [each for each in self._watermarks_us if each != MAX_TIMESTAMP_US]
        if not open_us:
            return self._send_on(MAX_TIMESTAMP_US)
        events = self._send_on(self._choose(open_us))
        idle = not any(
            active and not self._done(channel) for channel, active in enumerate(self._active)
        )
        if idle == self._output_idle:
            return events
        self._output_idle = idle
        return (*events, StreamStatus(idle))


def valve_of_inputs(policy: str) -> WatermarkValve:
    """Returns a valve without channels for the inputs of an operator; `policy` is the value of
    `firesteel.operators.watermarks.MULTIPLE_WATERMARK_POLICY`, or "".

    Raises FiresteelError for an unknown policy.
    """
    if not policy:
        return WatermarkValve(0)
    if policy not in _POLICIES:
        raise FiresteelError(
            f"{MULTIPLE_WATERMARK_POLICY} is {policy!r}; it must be {' or '.join(_POLICIES)}"
        )
    return QueryWatermark(_POLICIES[policy])


_POLICIES: dict[str, Callable[[Iterable[int]], int]] = {"min": min, "max": max}


class MissingTime(FiresteelError):
    """Rows that a window would get have no event time."""

    def __init__(self, column: str, *, operator: str = "") -> None:
        super().__init__(
            f"{f'{operator}: ' if operator else ''}event time column '{column}' is null in some"
            " rows; drop them or give them a time before the window."
            " Rows of CSV and JSON files that do not fit the schema have nulls unless"
            ' FileSource(malformed="drop"), "side_output" or "fail" says otherwise'
        )
