"""Barriers of several channels: what waits, and when a snapshot is due."""

from __future__ import annotations

from dataclasses import replace

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
    Overtake,
    Release,
)

A, B, C = Channel(0, 0), Channel(0, 1), Channel(1, 0)


NOW = 100.0


def overtaking(checkpoint_id: int) -> CheckpointBarrier:
    return replace(barrier(checkpoint_id), unaligned=True)


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
    alignment = BarrierAlignment([2])
    lax = replace(barrier(1), at_least_once=True)
    assert alignment.on_barrier(A, lax) == []
    assert alignment.on_barrier(B, lax) == [Aligned(lax)]


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


def test_a_checkpoint_aborted_elsewhere_releases_its_channels() -> None:
    alignment = BarrierAlignment([2])
    alignment.on_barrier(A, barrier(1))
    assert alignment.abort(1) == [GivenUp(1), Release(A)]
    assert alignment.on_barrier(B, barrier(1)) == []
    assert alignment.abort(2) == []
    assert alignment.on_barrier(A, barrier(2)) == []
    assert alignment.on_barrier(A, barrier(3)) == [Hold(A)]


def test_a_task_with_only_finished_producers_is_triggered_by_the_master() -> None:
    alignment = BarrierAlignment([2])
    alignment.on_end(A)
    assert alignment.trigger(barrier(1), NOW) == [], "B's last elements come first"
    assert alignment.on_end(B) == [Aligned(barrier(1))]
    assert alignment.trigger(barrier(2), NOW) == [Aligned(barrier(2))]


def test_an_unaligned_barrier_overtakes_as_soon_as_the_first_arrives() -> None:
    alignment = BarrierAlignment([2, 1])
    alignment.on_end(B)
    assert alignment.on_arrival(overtaking(1), NOW) == [Overtake(overtaking(1), (A, C))]
    assert alignment.on_arrival(overtaking(1), NOW) == [], "of another channel"
    assert alignment.on_barrier(A, overtaking(1)) == [], "it was in its place in the queue"
    assert alignment.on_end(A) == []
    assert alignment.trigger(overtaking(2), NOW) == [Overtake(overtaking(2), (C,))]
    alignment.on_end(C)
    assert alignment.trigger(overtaking(3), NOW) == [Aligned(overtaking(3))], "nothing is ahead"


def test_an_aligned_barrier_overtakes_when_it_has_waited_too_long() -> None:
    alignment = BarrierAlignment([2, 1])
    patient = replace(barrier(1), aligned_timeout_ms=500)
    assert alignment.on_arrival(patient, NOW) == []
    assert alignment.deadline == NOW + 0.5
    assert alignment.on_barrier(A, patient) == [Hold(A)]
    assert alignment.on_time(NOW + 0.4) == []
    unaligned = replace(patient, unaligned=True)
    assert alignment.on_time(NOW + 0.5) == [Overtake(unaligned, (B, C)), Release(A)]
    assert alignment.deadline is None


def test_what_is_aligned_in_time_or_given_up_does_not_overtake() -> None:
    alignment = BarrierAlignment([2])
    for checkpoint_id in (1, 2):
        patient = replace(barrier(checkpoint_id), aligned_timeout_ms=500)
        alignment.on_arrival(patient, NOW)
        alignment.on_arrival(patient, NOW + 0.3)
        alignment.on_barrier(A, patient)
        assert alignment.deadline == NOW + 0.5, "of the first arrival"
        alignment.on_barrier(B, patient) if checkpoint_id == 1 else alignment.abort(2)
        assert alignment.on_time(NOW + 9.0) == []
        assert alignment.deadline is None


def test_a_barrier_that_overtook_elsewhere_ends_the_alignment_here() -> None:
    alignment = BarrierAlignment([2, 1])
    alignment.on_barrier(A, replace(barrier(1), aligned_timeout_ms=500))
    outcomes = alignment.on_arrival(overtaking(1), NOW)
    assert [type(outcome) for outcome in outcomes] == [Overtake, Release]
    assert isinstance(outcomes[0], Overtake)
    assert outcomes[0].channels == (B, C), "A has nothing ahead of its barrier any more"


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
                        assert sent <= checkpoint_id, "nothing after the barrier was taken"
                case GivenUp() | Overtake():
                    pass


@given(st.integers(1, 4), st.data())
def test_in_any_order_a_snapshot_is_taken_exactly_at_the_barriers(
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
        assert any(c not in model.held for c in open_channels), "one channel can still be read"


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
