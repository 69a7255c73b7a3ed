"""Reads a task's gates fairly, one element at a time, and tracks the progress of each channel.

The reader knows which channels have ended and their event time; it does not know operators. Barrier
alignment takes place between `poll` and the task: gates can block and unblock single channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from firesteel.elements import EndOfData, EndOfPartition, StreamElement, StreamStatus, Watermark
from taskexecutor.executor.task.interfaces import InputGate
from taskexecutor.executor.timing.watermarks import ValveEvent, WatermarkValve


@dataclass(slots=True)
class GateState:
    """The progress of one gate's channels."""

    valve: WatermarkValve
    data_channels: int  # channels that have not sent EndOfData
    open_channels: int  # channels that have not sent EndOfPartition
    # False if a producer stopped with a savepoint and has more to send after a restart.
    drained: bool = True


class InputReader:
    """Polls the gates in turn, so that a busy gate does not starve the others."""

    def __init__(
        self,
        gates: Sequence[InputGate],
        create_valve: Callable[[int], WatermarkValve] = WatermarkValve,
    ) -> None:
        """`create_valve` is called with the number of channels of each gate."""
        self.gates = tuple(gates)
        self.states = tuple(
            GateState(create_valve(g.channels), g.channels, g.channels) for g in self.gates
        )
        self._turn = 0

    def poll(self) -> tuple[int, int, StreamElement] | None:
        """Returns (gate, channel, element), or None if nothing is available; never blocks. A plain
        tuple, because this is called for every batch.
        """
        count = len(self.gates)
        for _ in range(count):
            gate = self._turn
            self._turn = gate + 1 if gate + 1 < count else 0
            polled = self.gates[gate].poll()
            if polled is not None:
                return gate, polled[0], polled[1]
        return None

    def on_event_time(
        self, gate: int, channel: int, event: Watermark | StreamStatus
    ) -> tuple[ValveEvent, ...]:
        """Returns the gate's combined events that follow from this channel's event."""
        valve = self.states[gate].valve
        if isinstance(event, Watermark):
            return valve.on_watermark(channel, event.timestamp_us)
        return valve.on_status(channel, event.idle)

    def on_end_of_data(self, gate: int, channel: int, event: EndOfData) -> tuple[ValveEvent, ...]:
        state = self.states[gate]
        state.data_channels -= 1
        if not event.finished:
            state.drained = False
            return ()
        return state.valve.on_end(channel)

    def on_end_of_partition(self, gate: int, channel: int, event: EndOfPartition) -> None:
        self.states[gate].open_channels -= 1

    def gate_ended(self, gate: int) -> bool:
        return self.states[gate].data_channels == 0

    @property
    def all_data_read(self) -> bool:
        return all(state.data_channels == 0 for state in self.states)

    @property
    def all_partitions_ended(self) -> bool:
        return all(state.open_channels == 0 for state in self.states)

    @property
    def drained(self) -> bool:
        """Returns whether every producer has really ended, rather than stopped with a savepoint."""
        return all(state.drained for state in self.states)
