"""The two halves of a channel, joined without a socket."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.elements import (
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    StreamElement,
    StreamStatus,
    Watermark,
)
from taskexecutor.executor.exchange.channels import (
    MAX_WAITING_EVENTS,
    RECEIVER_TRANSITIONS,
    SENDER_TRANSITIONS,
    BlockReason,
    Parcel,
    ReceiverChannel,
    ReceiverState,
    SenderChannel,
    SenderState,
)
from taskexecutor.executor.exchange.errors import LocalProtocolError, RemoteProtocolError
from tests.long import fewer

WINDOW_BYTES = 1000


def numbers(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(start, start + count), pa.int64())})


def barrier(checkpoint_id: int) -> CheckpointBarrier:
    return CheckpointBarrier(checkpoint_id=checkpoint_id, timestamp_ms=0)


class Joined:
    """A sender and a receiver, with the messages in flight in both directions."""

    def __init__(self, *, batch_rows: int = 100, opened: bool = True) -> None:
        self.sender = SenderChannel("test", window_bytes=WINDOW_BYTES, batch_rows=batch_rows)
        self.receiver = ReceiverChannel("test", window_bytes=WINDOW_BYTES)
        self.parcels: list[Parcel] = []
        self.answers: list[tuple[int, int] | str] = []
        if opened:
            self.sender.open()

    def send(self, coalesce: bool = True) -> Parcel | None:
        parcel = self.sender.take(coalesce=coalesce)
        if parcel is not None:
            self.parcels.append(parcel)
        return parcel

    def arrive(self) -> None:
        if not self.parcels:
            return
        parcel = self.parcels.pop(0)
        element = parcel.event if parcel.event is not None else pa.concat_batches(parcel.batches)
        self.receiver.receive(
            element, sequence=parcel.sequence, count=parcel.count, size_bytes=parcel.size_bytes
        )

    def poll(self) -> StreamElement | None:
        if not self.receiver.available:
            return None
        element, grant = self.receiver.take()
        if isinstance(element, EndOfPartition):
            self.answers.append("consumed")
        elif grant is not None:
            self.answers.append((grant.size_bytes, grant.events))
        return element

    def answer(self) -> None:
        if not self.answers:
            return
        match self.answers.pop(0):
            case (size_bytes, events):
                self.sender.granted(size_bytes, events)
            case _:
                self.sender.consumed()

    def settle(self) -> list[StreamElement]:
        """Carries everything there and back until nothing moves; what was polled."""
        polled: list[StreamElement] = []
        while self.sender.waiting or self.parcels or self.receiver.available or self.answers:
            self.send()
            self.arrive()
            if (element := self.poll()) is not None:
                polled.append(element)
            self.answer()
        return polled


def test_life_of_a_channel() -> None:
    channel = Joined(opened=False)
    assert channel.sender.offer(numbers(0, 3), 24)
    assert channel.send() is None, "it is not opened yet"
    channel.sender.open()
    assert channel.sender.offer_event(Watermark(7))
    assert channel.sender.offer_event(EndOfPartition())
    assert [type(e) for e in channel.settle()] == [pa.RecordBatch, Watermark, EndOfPartition]
    assert channel.sender.state is SenderState.FINISHED
    assert channel.receiver.state is ReceiverState.FINISHED


def test_small_batches_that_wait_are_sent_as_one_but_never_across_an_event() -> None:
    channel = Joined()
    for n in range(3):
        channel.sender.offer(numbers(n, 1), 8)
    channel.sender.offer_event(Watermark(0))
    channel.sender.offer(numbers(3, 1), 8)
    first, event, last = channel.send(), channel.send(), channel.send()
    assert first is not None and (first.sequence, first.count, first.size_bytes) == (0, 3, 24)
    assert event is not None and (event.sequence, event.event) == (3, Watermark(0))
    assert last is not None and (last.sequence, last.count) == (4, 1)


def test_coalescing_stops_at_the_row_and_byte_limits() -> None:
    channel = Joined(batch_rows=5)
    for _ in range(3):
        channel.sender.offer(numbers(0, 2), 10)
    assert (channel.send().count, channel.send().count) == (2, 1)  # type: ignore[union-attr]
    for _ in range(3):
        channel.sender.offer(numbers(0, 1), WINDOW_BYTES // 5)
    assert [channel.send().count for _ in range(3)] == [1, 1, 1]  # type: ignore[union-attr]


def test_a_sender_is_never_more_than_its_window_ahead() -> None:
    channel = Joined()
    assert channel.sender.offer(numbers(0, 1), 600)
    assert not channel.sender.offer(numbers(1, 1), 401)
    assert channel.sender.offer(numbers(1, 1), 400)
    channel.send(), channel.arrive()
    assert not channel.sender.offer(numbers(2, 1), 1), "it has arrived, but is not taken"
    channel.poll(), channel.answer()
    assert channel.sender.offer(numbers(2, 1), 600)


def test_a_batch_larger_than_the_window_goes_when_nothing_is_outstanding() -> None:
    channel = Joined()
    channel.sender.offer(numbers(0, 1), 1)
    assert not channel.sender.offer(numbers(1, 1), 5 * WINDOW_BYTES)
    channel.settle()
    assert channel.sender.offer(numbers(1, 1), 5 * WINDOW_BYTES)
    assert not channel.sender.offer(numbers(2, 1), 1)


def test_events_do_not_wait_for_data_credit_but_are_bounded() -> None:
    channel = Joined()
    channel.sender.offer(numbers(0, 1), WINDOW_BYTES)
    for n in range(MAX_WAITING_EVENTS):
        assert channel.sender.offer_event(Watermark(n))
    assert not channel.sender.offer_event(Watermark(0))
    assert len(channel.settle()) == MAX_WAITING_EVENTS + 1
    assert channel.sender.offer_event(Watermark(0))


def test_credit_returns_in_steps_and_whenever_the_queue_runs_dry() -> None:
    channel = Joined()
    for n in range(3):
        channel.sender.offer(numbers(n, 1), 100)
        channel.send(), channel.arrive()
    channel.poll()
    assert channel.answers == []
    channel.poll()
    assert channel.answers == []
    channel.poll()
    assert channel.answers == [(300, 0)]


def test_a_barrier_after_the_data_is_acknowledged_when_it_is_taken() -> None:
    """The producer waits for that before it ends (spec 001), and no more data returns credit."""
    channel = Joined()
    for event in (EndOfData(), CheckpointBarrier(checkpoint_id=1, timestamp_ms=0)):
        assert channel.sender.offer_event(event)
        assert not channel.sender.acknowledged
        channel.settle()
        assert channel.sender.acknowledged


def test_a_blocked_channel_fills_up_but_is_not_available() -> None:
    channel = Joined()
    channel.receiver.block(BlockReason.BARRIER_ALIGNMENT)
    channel.receiver.block(BlockReason.INPUT_ORDER)
    channel.sender.offer(numbers(0, 1), 8)
    channel.send(), channel.arrive()
    assert not channel.receiver.available
    assert len(channel.receiver.queued) == 1
    channel.receiver.unblock(BlockReason.BARRIER_ALIGNMENT)
    assert not channel.receiver.available, "the other reason is still there"
    channel.receiver.unblock(BlockReason.INPUT_ORDER)
    assert channel.receiver.available


def test_queued_elements_of_both_sides_can_be_seen() -> None:
    channel = Joined()
    channel.sender.offer(numbers(0, 1), 8)
    channel.send(), channel.arrive()
    channel.sender.offer(numbers(1, 1), 8)
    channel.sender.offer_event(CheckpointBarrier(checkpoint_id=1, timestamp_ms=0))
    assert [e.num_rows for e in channel.receiver.queued] == [1]
    assert [type(e) for e in channel.sender.queued] == [pa.RecordBatch, CheckpointBarrier]


@pytest.mark.parametrize("sequence", [0, 2])
def test_a_gap_or_a_double_is_the_producers_fault(sequence: int) -> None:
    receiver = ReceiverChannel("test", window_bytes=WINDOW_BYTES)
    receiver.receive(Watermark(0), sequence=0, count=1, size_bytes=0)
    with pytest.raises(RemoteProtocolError, match=f"expected element 1, received {sequence}"):
        receiver.receive(Watermark(1), sequence=sequence, count=1, size_bytes=0)


def test_nothing_may_follow_the_end() -> None:
    channel = Joined()
    channel.sender.offer_event(EndOfPartition())
    with pytest.raises(LocalProtocolError, match="after its end"):
        channel.sender.offer(numbers(0, 1), 8)
    channel.receiver.receive(EndOfPartition(), sequence=0, count=1, size_bytes=0)
    with pytest.raises(RemoteProtocolError, match="after EndOfPartition"):
        channel.receiver.receive(Watermark(0), sequence=1, count=1, size_bytes=0)


def test_a_consumer_cannot_grant_what_it_did_not_get_nor_open_twice() -> None:
    channel = Joined()
    channel.sender.offer(numbers(0, 1), 8)
    with pytest.raises(RemoteProtocolError, match="9 bytes and 0 events granted"):
        channel.sender.granted(9, 0)
    with pytest.raises(RemoteProtocolError, match="opened a second time"):
        channel.sender.open()
    with pytest.raises(RemoteProtocolError, match="acknowledged as consumed while OPEN"):
        channel.sender.consumed()


def test_a_lost_producer_fails_the_channel_unless_all_was_received() -> None:
    channel = Joined()
    channel.sender.offer(numbers(0, 1), 8)
    channel.send(), channel.arrive()
    assert channel.receiver.fail("gone")
    assert (channel.receiver.state, channel.receiver.available) == (ReceiverState.FAILED, False)
    channel.receiver.receive(
        Watermark(0), sequence=1, count=1, size_bytes=0
    )  # was under way: ignored

    ended = Joined()
    ended.sender.offer_event(EndOfPartition())
    ended.send(), ended.arrive()
    assert not ended.receiver.fail("gone")
    assert ended.poll() == EndOfPartition()


def test_abort_and_abandon_free_what_waits_and_come_too_late_after_the_end() -> None:
    aborted = Joined()
    aborted.sender.offer(numbers(0, 1), 8)
    aborted.sender.abort("cancelled")
    assert (aborted.sender.queued, aborted.sender.outstanding_bytes, aborted.send()) == (
        (),
        0,
        None,
    )
    aborted.sender.granted(8, 0)  # was on its way
    aborted.sender.abandon("gone")
    assert (aborted.sender.state, aborted.sender.reason) == (SenderState.ABORTED, "cancelled")

    finished = Joined()
    finished.sender.offer_event(EndOfPartition())
    finished.settle()
    finished.sender.abandon("gone")
    assert finished.sender.state is SenderState.FINISHED


def test_tables_are_complete_and_lead_to_an_end() -> None:
    for table in (SENDER_TRANSITIONS, RECEIVER_TRANSITIONS):
        assert set(table) == set(type(next(iter(table))))
        ends = {state for state, following in table.items() if not following}
        for state in table:
            reached, todo = set(), [state]
            while todo:
                for following in table[todo.pop()] - reached:
                    reached.add(following)
                    todo.append(following)
            assert state in ends or reached & ends


EVENTS = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(Watermark),
    st.booleans().map(StreamStatus),
    st.booleans().map(EndOfData),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("batch"), st.integers(0, 7), st.sampled_from([1, 50, 300, 999, 1000, 2500])
        ),
        st.tuples(st.just("event"), EVENTS),
        st.tuples(
            st.sampled_from(["send", "arrive", "poll", "answer", "block", "unblock", "open"])
        ),
    ),
    max_size=120,
)


@settings(max_examples=fewer(150))
@given(STEPS, st.booleans())
def test_any_interleaving_keeps_order_and_rows_and_respects_the_window(
    steps: list[tuple[object, ...]], coalesce: bool
) -> None:
    channel = Joined(batch_rows=10, opened=False)
    offered: list[object] = []  # row numbers and events, in order
    got: list[object] = []
    next_row, opened = 0, False

    def record(element: StreamElement | None) -> None:
        if element is not None:
            got.extend(
                element.column(0).to_pylist() if isinstance(element, pa.RecordBatch) else [element]
            )

    for step in [*steps, ("open",), ("unblock",)]:
        match step:
            case ("batch", int(rows), int(size_bytes)):
                before = channel.sender.outstanding_bytes
                if channel.sender.offer(numbers(next_row, rows), size_bytes):
                    offered.extend(range(next_row, next_row + rows))
                    next_row += rows
                    assert before + size_bytes <= WINDOW_BYTES or before == 0
                else:
                    assert before + size_bytes > WINDOW_BYTES
            case ("event", event):
                assert channel.sender.offer_event(event)  # type: ignore[arg-type]
                offered.append(event)
            case ("send",):
                channel.send(coalesce)
            case ("arrive",):
                channel.arrive()
            case ("poll",):
                record(channel.poll())
            case ("answer",):
                channel.answer()
            case ("block",):
                channel.receiver.block(BlockReason.BARRIER_ALIGNMENT)
            case ("unblock",):
                channel.receiver.unblock(BlockReason.BARRIER_ALIGNMENT)
            case ("open",):
                if not opened:
                    channel.sender.open()
                opened = True
        assert channel.receiver.queued_bytes <= channel.sender.outstanding_bytes, (
            "queued bytes must be covered by credit"
        )

    for element in channel.settle():
        record(element)
    assert got == offered
    assert channel.sender.outstanding_bytes == 0, (
        "all credit is back, so even the largest batch can go"
    )
    channel.sender.offer_event(EndOfPartition())
    assert channel.settle() == [EndOfPartition()]
    assert (channel.sender.state, channel.receiver.state) == (
        SenderState.FINISHED,
        ReceiverState.FINISHED,
    )


def test_a_recording_holds_queued_and_later_data_ahead_of_the_barrier() -> None:
    c = Joined()
    for start in range(3):
        c.sender.offer(numbers(start, 1), 100)
        c.send()
        c.arrive()
    first, _ = c.receiver.take()
    c.receiver.record(7)
    recording = c.receiver.recording
    assert recording is not None
    for event in (barrier(6), barrier(7)):
        c.sender.offer(numbers(3, 1), 100)
        c.sender.offer_event(event)
        while c.send():
            c.arrive()
        assert recording.complete is (event == barrier(7))
    c.sender.offer(numbers(4, 1), 100)
    c.send()
    c.arrive()
    assert [b.column(0).to_pylist() for b in recording.batches] == [[1], [2], [3], [3]]
    assert first not in recording.batches
    assert len(c.receiver.queued) == 7, "it is taken all the same"


def test_what_has_ended_has_nothing_ahead_of_a_barrier() -> None:
    c = Joined()
    c.sender.offer_event(EndOfPartition())
    c.send()
    c.arrive()
    for _ in range(2):
        c.receiver.record(1)
        assert c.receiver.recording is not None
        assert c.receiver.recording.complete
        if c.receiver.available:
            c.receiver.take()
    assert c.receiver.state is ReceiverState.FINISHED


def test_of_a_large_batch_a_part_is_taken_with_its_credit() -> None:
    c = Joined(batch_rows=100)
    c.sender.offer(numbers(0, 10), 800)
    c.send()
    c.arrive()
    taken, granted = [], 0
    while c.receiver.available:
        batch, grant = c.receiver.take(max_rows=4)
        assert isinstance(batch, pa.RecordBatch)
        taken.append(batch.column(0).to_pylist())
        granted += grant.size_bytes if grant is not None else 0
    assert taken == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert (granted, c.receiver.queued_bytes) == (800, 0)


def test_what_is_restored_comes_first_and_has_no_credit_to_give_back() -> None:
    c = Joined()
    c.sender.offer(numbers(9, 1), 8)
    c.send()
    c.arrive()
    c.receiver.restore([numbers(0, 1), numbers(1, 1)])
    taken = []
    for _ in range(3):
        batch, grant = c.receiver.take()
        assert isinstance(batch, pa.RecordBatch)
        taken.append((batch.column(0).to_pylist(), None if grant is None else grant.size_bytes))
    assert taken == [([0], None), ([1], None), ([9], 8)]


def test_an_overdraft_ends_one_element_and_starts_no_other() -> None:
    sender = SenderChannel("test", window_bytes=1000, batch_rows=100, overdraft_bytes=500)
    for _ in range(3):
        assert not sender.overdrawn
        assert sender.offer(numbers(0, 1), 400)
    assert sender.overdrawn
    assert not sender.offer(numbers(0, 1), 400), "it has an end, too"
    sender.granted(201, 0)
    assert not sender.overdrawn
    for _ in range(MAX_WAITING_EVENTS):
        assert sender.offer_event(Watermark(1))
    assert sender.overdrawn
    assert sender.offer_event(barrier(1))
