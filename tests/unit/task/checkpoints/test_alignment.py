"""Barriers of several channels: what waits, and when a snapshot is due."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from firesteel.elements import CheckpointBarrier
from taskexecutor.executor.task.checkpoints.alignment import (
    Aligned,
    BarrierAlignment,
    Channel,
    GivenUp,
    Hold,
    Outcome,
    Release,
)

A, B, C = Channel(0, 0), Channel(0, 1), Channel(1, 0)


def barrier(checkpoint_id: int) -> CheckpointBarrier:
    return CheckpointBarrier(checkpoint_id=checkpoint_id, timestamp_ms=0)


def test_a_channel_waits_for_the_barriers_of_all_others() -> None:
    alignment = BarrierAlignment([2, 1])
    assert alignment.on_barrier(A, barrier(1)) == [Hold(A)]
    assert alignment.on_barrier(C, barrier(1)) == [Hold(C)]
    assert alignment.aligning == 1
    assert alignment.on_barrier(B, barrier(1)) == [Aligned(barrier(1)), Release(A), Release(C)]
    assert alignment.aligning is None


def test_a_single_channel_never_waits() -> None:
    assert BarrierAlignment([1]).on_barrier(A, barrier(1)) == [Aligned(barrier(1))]


def test_at_least_once_holds_nothing() -> None:
    alignment = BarrierAlignment([2], hold=False)
    assert alignment.on_barrier(A, barrier(1)) == []
    assert alignment.on_barrier(B, barrier(1)) == [Aligned(barrier(1))]


def test_the_end_of_a_partition_counts_as_its_barrier_from_then_on() -> None:
    alignment = BarrierAlignment([2, 1])
    alignment.on_barrier(A, barrier(1))
    assert alignment.on_end(B) == []
    assert alignment.on_barrier(C, barrier(1)) == [Aligned(barrier(1)), Release(A)]
    assert alignment.on_barrier(A, barrier(2)) == [Hold(A)]
    assert alignment.on_end(C) == [Aligned(barrier(2)), Release(A)]


def test_a_newer_barrier_ends_the_older_alignment() -> None:
    alignment = BarrierAlignment([2, 1])
    alignment.on_barrier(A, barrier(1))
    assert alignment.on_barrier(B, barrier(2)) == [GivenUp(1), Release(A), Hold(B)]
    assert alignment.on_barrier(C, barrier(1)) == [], "late"
    assert alignment.on_barrier(A, barrier(2)) == [Hold(A)]
    assert alignment.on_barrier(C, barrier(2)) == [Aligned(barrier(2)), Release(B), Release(A)]


def test_what_was_given_up_elsewhere_releases_its_channels_and_does_not_begin_again() -> None:
    alignment = BarrierAlignment([2])
    alignment.on_barrier(A, barrier(1))
    assert alignment.abort(1) == [GivenUp(1), Release(A)]
    assert alignment.on_barrier(B, barrier(1)) == []
    assert alignment.abort(2) == []
    assert alignment.on_barrier(A, barrier(2)) == []
    assert alignment.on_barrier(A, barrier(3)) == [Hold(A)]


def test_a_task_whose_producers_have_all_finished_is_triggered_by_the_master() -> None:
    alignment = BarrierAlignment([2])
    alignment.on_end(A)
    assert alignment.trigger(barrier(1)) == [], "B's last elements come first"
    assert alignment.on_end(B) == [Aligned(barrier(1))]
    assert alignment.trigger(barrier(2)) == [Aligned(barrier(2))]


class Model:
    """Channels that send barriers in order, skip those that were given up, and end."""

    def __init__(self, channels: int) -> None:
        self.alignment = BarrierAlignment([channels])
        self.held: set[Channel] = set()
        self.sent = {Channel(0, n): 0 for n in range(channels)}
        self.ended: set[Channel] = set()
        self.aligned: list[int] = []

    def apply(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            match outcome:
                case Hold(channel):
                    assert channel not in self.held
                    self.held.add(channel)
                case Release(channel):
                    self.held.remove(channel)
                case Aligned(found):
                    checkpoint_id = found.checkpoint_id
                    assert checkpoint_id > max(self.aligned, default=0), "ids increase"
                    self.aligned.append(checkpoint_id)
                    for channel, sent in self.sent.items():
                        assert sent >= checkpoint_id or channel in self.ended
                        assert sent <= checkpoint_id, "nothing behind the barrier was taken"
                case GivenUp():
                    pass


@given(st.integers(1, 4), st.data())
def test_in_any_order_a_snapshot_is_taken_exactly_between_what_is_before_and_behind(
    channels: int, data: st.DataObject
) -> None:
    model = Model(channels)
    for _ in range(data.draw(st.integers(0, 40))):
        free = [c for c in model.sent if c not in model.held and c not in model.ended]
        if not free:
            break
        channel = data.draw(st.sampled_from(free))
        if data.draw(st.integers(0, 9)) == 0:
            model.ended.add(channel)
            model.apply(model.alignment.on_end(channel))
        else:
            model.sent[channel] += data.draw(st.integers(1, 2))
            model.apply(model.alignment.on_barrier(channel, barrier(model.sent[channel])))
    open_channels = [c for c in model.sent if c not in model.ended]
    if model.alignment.aligning is None:
        assert not model.held
    else:
        assert any(c not in model.held for c in open_channels), "somebody can still go on"


@given(st.integers(2, 4), st.data())
def test_with_every_barrier_sent_every_checkpoint_is_aligned(
    channels: int, data: st.DataObject
) -> None:
    model = Model(channels)
    last = data.draw(st.integers(1, 4))
    while free := [c for c, sent in model.sent.items() if c not in model.held and sent < last]:
        channel = data.draw(st.sampled_from(free))
        model.sent[channel] += 1
        model.apply(model.alignment.on_barrier(channel, barrier(model.sent[channel])))
    assert model.aligned == list(range(1, last + 1))
