"""When a task's snapshot is due, and which channels wait for it (spec 000; spec 001, "Checkpoints
with finished tasks").

A channel whose barrier has come is held until those of all others have: what it sends belongs
behind the checkpoint. EndOfPartition counts as a barrier of every later checkpoint. A barrier of a
newer checkpoint means that the older one was given up: its barriers will not all come.

Pure: barriers and endings in, outcomes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from firesteel.elements import CheckpointBarrier


class Channel(NamedTuple):
    gate: int
    channel: int


class Hold(NamedTuple):
    """Take nothing more from this channel."""

    channel: Channel


class Release(NamedTuple):
    """Go on with this channel."""

    channel: Channel


class Aligned(NamedTuple):
    """Take the snapshot, now."""

    barrier: CheckpointBarrier


class GivenUp(NamedTuple):
    """No snapshot will be taken for this checkpoint."""

    checkpoint_id: int


Outcome: TypeAlias = Hold | Release | Aligned | GivenUp


class BarrierAlignment:
    """Over all channels of a task's gates. With `hold` false nothing waits: at least once."""

    def __init__(self, channels: Sequence[int], *, hold: bool = True) -> None:
        """`channels`: how many each gate has."""
        self._open = {  # without EndOfPartition
            Channel(gate, channel)
            for gate, count in enumerate(channels)
            for channel in range(count)
        }
        self._hold = hold
        self._barrier: CheckpointBarrier | None = None  # being aligned
        self._missing: set[Channel] = set()
        self._held: list[Channel] = []
        self._latest = 0  # the newest checkpoint that was aligned or given up

    @property
    def aligning(self) -> int | None:
        """The checkpoint whose barriers are being collected."""
        return None if self._barrier is None else self._barrier.checkpoint_id

    def on_barrier(self, channel: Channel, barrier: CheckpointBarrier) -> list[Outcome]:
        outcomes = self._begin(barrier)
        if self.aligning != barrier.checkpoint_id:
            return outcomes  # of one that was given up
        self._missing.discard(channel)
        if self._hold and self._missing:
            self._held.append(channel)
            outcomes.append(Hold(channel))
        return [*outcomes, *self._complete()]

    def on_end(self, channel: Channel) -> list[Outcome]:
        """EndOfPartition."""
        self._open.discard(channel)
        self._missing.discard(channel)
        return self._complete()

    def trigger(self, barrier: CheckpointBarrier) -> list[Outcome]:
        """All of the task's producers have finished: the JobMaster triggers it itself. What they
        sent is taken first.
        """
        return [*self._begin(barrier), *self._complete()]

    def abort(self, checkpoint_id: int) -> list[Outcome]:
        """The checkpoint was given up elsewhere."""
        if self.aligning != checkpoint_id:
            self._latest = max(self._latest, checkpoint_id)
            return []
        return self._give_up()

    def _begin(self, barrier: CheckpointBarrier) -> list[Outcome]:
        checkpoint_id = barrier.checkpoint_id
        if checkpoint_id <= self._latest or checkpoint_id == self.aligning:
            return []
        if self.aligning is not None and checkpoint_id < self.aligning:
            return []
        outcomes = self._give_up() if self._barrier is not None else []
        self._barrier = barrier
        self._missing = set(self._open)
        return outcomes

    def _complete(self) -> list[Outcome]:
        if self._barrier is None or self._missing:
            return []
        barrier = self._barrier
        return [Aligned(barrier), *self._end()]

    def _give_up(self) -> list[Outcome]:
        assert self._barrier is not None
        return [GivenUp(self._barrier.checkpoint_id), *self._end()]

    def _end(self) -> list[Outcome]:
        """What was held goes on, after the snapshot."""
        assert self._barrier is not None
        self._latest = self._barrier.checkpoint_id
        self._barrier = None
        held, self._held = self._held, []
        return [Release(channel) for channel in held]
