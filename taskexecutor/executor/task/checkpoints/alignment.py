"""Decides when a task's snapshot is due, and which channels wait for it (spec 000; spec 001,
"Checkpoints with finished tasks").

A channel whose barrier was taken is held until the barriers of all other channels were: its later
data belongs after the checkpoint. EndOfPartition counts as a barrier of every later checkpoint. A
barrier of a newer checkpoint means that the older one was aborted: its barriers will not all come.

An unaligned barrier waits for nothing: as soon as the first one has arrived in any channel,
whatever is ahead of it, the snapshot is due, and the data ahead of the barriers belongs to it. An
aligned barrier becomes unaligned when its timeout has passed since the first one arrived.

Pure: takes barriers, ends and times; returns outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from firesteel.elements import CheckpointBarrier


class Channel(NamedTuple):
    gate: int
    channel: int


class Hold(NamedTuple):
    """Stop taking elements from this channel."""

    channel: Channel


class Release(NamedTuple):
    """Resume taking elements from this channel."""

    channel: Channel


class Aligned(NamedTuple):
    """Take the snapshot now."""

    barrier: CheckpointBarrier


class Overtake(NamedTuple):
    """Take the snapshot now, including the data that these channels have ahead of their
    barriers.
    """

    barrier: CheckpointBarrier  # unaligned
    channels: tuple[Channel, ...]  # channels whose barrier was not taken


class GivenUp(NamedTuple):
    """No snapshot will be taken for this checkpoint."""

    checkpoint_id: int


Outcome: TypeAlias = Hold | Release | Aligned | Overtake | GivenUp


class _Timeout(NamedTuple):
    at: float
    barrier: CheckpointBarrier


class BarrierAlignment:
    """Aligns barriers over all channels of a task's gates. Times are seconds on any clock."""

    def __init__(self, channels: Sequence[int]) -> None:
        """`channels`: the number of channels of each gate."""
        self._open = {  # channels that have not sent EndOfPartition
            Channel(gate, channel)
            for gate, count in enumerate(channels)
            for channel in range(count)
        }
        self._timeouts: dict[int, _Timeout] = {}  # of checkpoints that may become unaligned
        self._barrier: CheckpointBarrier | None = None  # of the checkpoint being aligned
        self._missing: set[Channel] = set()
        self._held: list[Channel] = []
        self._latest = 0  # the newest checkpoint that was aligned or aborted

    @property
    def aligning(self) -> int | None:
        """Returns the checkpoint whose barriers are being collected."""
        return None if self._barrier is None else self._barrier.checkpoint_id

    @property
    def deadline(self) -> float | None:
        """Returns when `on_time` is due."""
        return min((timeout.at for timeout in self._timeouts.values()), default=None)

    def on_arrival(self, barrier: CheckpointBarrier, now: float) -> list[Outcome]:
        """Handles the arrival of a barrier in a channel, possibly long before it is taken."""
        checkpoint_id = barrier.checkpoint_id
        if checkpoint_id <= self._latest:
            return []
        if barrier.unaligned:
            outcomes = self._begin(barrier)
            return [*outcomes, *self._overtake()] if self.aligning == checkpoint_id else outcomes
        if barrier.aligned_timeout_ms is not None and checkpoint_id not in self._timeouts:
            at = now + barrier.aligned_timeout_ms / 1000
            self._timeouts[checkpoint_id] = _Timeout(at, barrier)
        return []

    def on_time(self, now: float) -> list[Outcome]:
        """Makes checkpoints unaligned whose timeout has passed."""
        due = [timeout.barrier for timeout in self._timeouts.values() if timeout.at <= now]
        outcomes: list[Outcome] = []
        for barrier in sorted(due, key=lambda barrier: barrier.checkpoint_id):
            outcomes += self.on_arrival(replace(barrier, unaligned=True), now)
        return outcomes

    def on_barrier(self, channel: Channel, barrier: CheckpointBarrier) -> list[Outcome]:
        outcomes = self._begin(barrier)
        if self.aligning != barrier.checkpoint_id:
            return outcomes  # the barrier of an aborted checkpoint
        self._missing.discard(channel)
        if self._missing and not barrier.at_least_once:
            self._held.append(channel)
            outcomes.append(Hold(channel))
        return [*outcomes, *self._complete()]

    def on_end(self, channel: Channel) -> list[Outcome]:
        """Handles EndOfPartition."""
        self._open.discard(channel)
        self._missing.discard(channel)
        return self._complete()

    def trigger(self, barrier: CheckpointBarrier, now: float) -> list[Outcome]:
        """Handles the JobMaster's trigger, sent when all of the task's producers have finished.
        Their data is taken first, or overtaken.
        """
        if barrier.overtakes and self._open:
            return self.on_arrival(barrier, now) or self._begin_aligned(barrier)
        return self._begin_aligned(barrier)

    def abort(self, checkpoint_id: int) -> list[Outcome]:
        """Handles a checkpoint that was aborted elsewhere."""
        if self.aligning != checkpoint_id:
            self._latest = max(self._latest, checkpoint_id)
            self._timeouts.pop(checkpoint_id, None)
            return []
        return self._give_up()

    def _begin_aligned(self, barrier: CheckpointBarrier) -> list[Outcome]:
        return [*self._begin(barrier), *self._complete()]

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

    def _overtake(self) -> list[Outcome]:
        assert self._barrier is not None
        barrier = replace(self._barrier, unaligned=True)
        return [Overtake(barrier, tuple(sorted(self._missing))), *self._end()]

    def _give_up(self) -> list[Outcome]:
        assert self._barrier is not None
        return [GivenUp(self._barrier.checkpoint_id), *self._end()]

    def _end(self) -> list[Outcome]:
        """Releases the held channels after the snapshot."""
        assert self._barrier is not None
        self._latest = self._barrier.checkpoint_id
        self._barrier = None
        self._timeouts = {n: t for n, t in self._timeouts.items() if n > self._latest}
        held, self._held = self._held, []
        return [Release(channel) for channel in held]
