"""Both sides of watermark alignment, joined: readers with splits, the JobMaster's groups, and
between them messages that are
under way for any time, or lost with a connection that breaks."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel._proto import tasks_pb2
from firesteel.common.ids import AttemptId
from firesteel.common.job_graph import JobVertex
from firesteel.common.operator_messages import WatermarkReported
from firesteel.elements import MAX_WATERMARK, MIN_TIMESTAMP_US, StreamStatus, Watermark
from firesteel.operators import WatermarkAlignmentSpec
from jobmaster.core.coordinators.watermark_alignment import Announcement, WatermarkAlignment
from taskexecutor.executor.timing.watermark_alignment import (
    WatermarkAlignment as SourceAlignment,
)
from tests.job_master import job, operator_id, vertex

DRIFT_US = {"fast": 100, "slow": 250}
INTERVAL_US = 1_000_000


class Reader:
    """Reads a split at a time, each as far as the next of `splits` (None: there is nothing for a
    while), and ends.
    """

    def __init__(self, world: World, name: str, subtask: int, splits: list[int | None]) -> None:
        self.world, self.name, self.subtask = world, name, subtask
        self.splits = deque(splits)
        self.watermark_us = MIN_TIMESTAMP_US
        self.idle = self.ended = False
        self.timers: list[int] = []
        self.out: deque[tasks_pb2.WatermarkReported] = deque()
        self.incoming: deque[int | None] = deque()  # limits; None: report again
        spec = WatermarkAlignmentSpec(
            group="g", max_drift_us=DRIFT_US[name], update_interval_us=INTERVAL_US
        )
        self.alignment = SourceAlignment(
            spec,
            self.out.append,
            self.timers.append,
            now_ms=lambda: world.now_ms,
            now_ns=lambda: world.now_ms * 1_000_000,
        )

    @property
    def attempt_id(self) -> AttemptId:
        return AttemptId(f"{self.name}{self.subtask}")

    def step(self) -> None:
        assert not self.alignment.stopped
        if not self.splits:
            self.ended = True
            self.alignment.event(MAX_WATERMARK)
            return
        split = self.splits.popleft()
        if self.idle or split is None:
            self.idle = split is None
            self.alignment.event(StreamStatus(self.idle))
        if split is not None:
            self.world.on_read(self)
            if split > self.watermark_us:
                self.watermark_us = split
                self.alignment.event(Watermark(split))

    def report(self) -> None:
        report = self.out.popleft()
        self.world.reported(
            self, WatermarkReported(watermark_us=report.watermark_us, idle=report.idle)
        )

    def receive(self) -> None:
        limit_us = self.incoming.popleft()
        if limit_us is None:
            self.alignment.report()
        else:
            self.alignment.limit(limit_us)

    def on_timer(self) -> None:
        self.timers.remove(min(self.timers))
        self.alignment.on_timer()

    def lose_connection(self) -> None:
        self.out.clear()
        self.incoming.clear()
        self.world.alignment.reconnected(operator_id(self.name), self.subtask)
        self.incoming.append(None)


def source(name: str, parallelism: int) -> JobVertex:
    options = {"group": "g", "max_drift_us": DRIFT_US[name], "update_interval_us": INTERVAL_US}
    return vertex(name, parallelism, coordinator=("alignment", {"alignment": options}))


class World:
    def __init__(self, splits: dict[str, list[list[int | None]]], chance: random.Random) -> None:
        self.now_ms = 0
        self.chance = chance
        self.alignment = WatermarkAlignment.of(
            job(*(source(name, len(s)) for name, s in splits.items()), edges=False)
        )
        self.readers = [
            Reader(self, name, i, list(own))
            for name, each in splits.items()
            for i, own in enumerate(each)
        ]
        self.on_read: Callable[[Reader], None] = lambda reader: None
        self.breaks = 5

    def reported(self, reader: Reader, report: WatermarkReported) -> None:
        self.send(
            self.alignment.reported(
                operator_id(reader.name),
                reader.subtask,
                reader.attempt_id,
                report,
                self.now_ms / 1000,
            )
        )

    def send(self, announcements: list[Announcement]) -> None:
        for announcement in announcements:
            (reader,) = [r for r in self.readers if r.attempt_id == announcement.attempt_id]
            reader.incoming.append(announcement.limit.limit_us)

    def possible(self) -> list[Callable[[], None]]:
        """Returns the actions that are possible now, without time passing."""
        actions: list[Callable[[], None]] = []
        for reader in self.readers:
            if not reader.ended and not reader.alignment.stopped:
                actions.append(reader.step)
            if reader.out:
                actions.append(reader.report)
            if reader.incoming:
                actions.append(reader.receive)
            if reader.timers and min(reader.timers) <= self.now_ms:
                actions.append(reader.on_timer)
        deadline = self.alignment.next_deadline()
        if deadline is not None and deadline * 1000 <= self.now_ms:
            actions.append(lambda: self.send(self.alignment.tick(self.now_ms / 1000)))
        return actions

    def pass_time(self) -> None:
        due = [timer for reader in self.readers for timer in reader.timers]
        deadline = self.alignment.next_deadline()
        if deadline is not None:
            due.append(-int(-deadline * 1000 // 1))
        assert due, (
            "all readers are stopped for ever: "
            f"{[(r.attempt_id, r.watermark_us, r.alignment._limit_us) for r in self.readers]}"
        )
        self.now_ms = max(self.now_ms, min(due))

    def run(self) -> None:
        while not all(reader.ended for reader in self.readers):
            self.chance.choice(self.possible() or [self.pass_time])()
            if self.breaks and self.chance.random() < 0.02:
                self.breaks -= 1
                self.chance.choice(self.readers).lose_connection()


ahead = st.lists(st.integers(0, 3_000), max_size=12).map(sorted)
with_pauses = st.lists(st.one_of(st.integers(0, 3_000), st.none()), max_size=12)


@given(
    st.lists(ahead, min_size=1, max_size=3),
    st.lists(ahead, min_size=1, max_size=2),
    st.randoms(use_true_random=False),
)
def test_readers_ahead_of_the_slowest_stop_and_all_reach_their_end(
    fast: list[list[int | None]], slow: list[list[int | None]], chance: random.Random
) -> None:
    world = World({"fast": fast, "slow": slow}, chance)

    def check(reader: Reader) -> None:
        slowest_us = min(other.watermark_us for other in world.readers if not other.ended)
        if slowest_us == MIN_TIMESTAMP_US:
            assert reader.watermark_us == MIN_TIMESTAMP_US, (
                "behind its first watermark, and one source has none yet"
            )
        else:
            assert reader.watermark_us <= slowest_us + DRIFT_US[reader.name]

    world.on_read = check
    world.run()


@given(
    st.lists(with_pauses, min_size=1, max_size=3),
    st.lists(with_pauses, min_size=1, max_size=2),
    st.randoms(use_true_random=False),
)
def test_all_reach_their_end_however_many_are_idle(
    fast: list[list[int | None]], slow: list[list[int | None]], chance: random.Random
) -> None:
    World({"fast": fast, "slow": slow}, chance).run()


@pytest.mark.parametrize("others", ["idle", "ended"])
def test_a_single_source_continues_however_far(others: str) -> None:
    far: list[int | None] = [1_000 * n for n in range(1, 20)]
    world = World({"fast": [far], "slow": [[None] if others == "idle" else []]}, random.Random(1))
    (fast, slow) = world.readers
    world.breaks = 0
    slow.step()
    while not fast.ended:
        actions = [action for action in world.possible() if action != slow.step]
        (actions or [world.pass_time])[0]()
    assert slow.idle == (others == "idle")
