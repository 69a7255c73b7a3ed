"""Partitions are divided into ranges, which subtasks share and read in order."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.errors import FiresteelError
from taskexecutor.executor.connectors.kafka.partitions import Available, Partition, Progress
from taskexecutor.executor.connectors.kafka.ranges import (
    Plan,
    Range,
    divided,
    existing,
    in_order,
)

SIZES = st.lists(st.integers(0, 1_000), min_size=1, max_size=6)


def _wholes(sizes: list[int]) -> list[Range]:
    return [
        Range("t", number, "one", 10 * number, 10 * number + size)
        for number, size in enumerate(sizes)
    ]


@given(SIZES, st.integers(1, 40))
def test_ranges_cover_each_partition_once(sizes: list[int], at_least: int) -> None:
    wholes = _wholes(sizes)
    ranges = divided(wholes, at_least, {})
    for whole in wholes:
        parts = [each for each in ranges if each.key == whole.key]
        assert (parts[0].start, parts[-1].end) == (whole.start, whole.end)
        assert all(before.end == after.start for before, after in pairwise(parts))
    records = sum(max(1, size) for size in sizes)  # an empty partition has one range
    assert len(ranges) == max(len(wholes), min(at_least, records))


@given(SIZES, st.integers(1, 40))
def test_no_range_is_much_larger_than_another_that_is_divided(
    sizes: list[int], at_least: int
) -> None:
    ranges = divided(_wholes(sizes), at_least, {})
    counts = Counter(each.key for each in ranges)
    of_divided = [each.end - each.start for each in ranges if counts[each.key] > 1]
    if of_divided:
        assert max(each.end - each.start for each in ranges) <= 2 * min(of_divided) + 1


def test_what_is_written_later_belongs_to_the_last_range() -> None:
    whole = Range("t", 0, "one", 0, 1_000)
    ranges = divided([whole], 4, {Partition("t", 0): 8})
    assert [(each.start, each.end) for each in ranges] == [(0, 2), (2, 4), (4, 6), (6, 1_000)]


@given(SIZES, st.integers(1, 40), st.integers(1, 5))
def test_subtasks_share_all_ranges(sizes: list[int], at_least: int, parallelism: int) -> None:
    plan = Plan.decoded(Plan(ranges=tuple(divided(_wholes(sizes), at_least, {}))).encoded)
    shares = [plan.share(subtask, parallelism) for subtask in range(parallelism)]
    assert sorted((p.key, p.next, p.end) for share in shares for p in share) == sorted(
        (each.key, each.start, each.end) for each in plan.ranges
    )
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    counts = Counter(each.key for each in plan.ranges)
    assert set(plan.divided) == {key for key, count in counts.items() if count > 1}


def _progress(at: int, end: int, partition: int = 0) -> Progress:
    return Progress(topic="t", partition=partition, topic_id="one", next=at, end=end)


def test_a_partition_is_read_in_the_order_of_its_ranges() -> None:
    found = in_order([_progress(20, 30), _progress(5, 10), _progress(40, 50), _progress(0, 5, 1)])
    assert found == {
        Partition("t", 0): [_progress(5, 10), _progress(20, 30), _progress(40, 50)],
        Partition("t", 1): [_progress(0, 5, 1)],
    }


def test_adjacent_ranges_are_joined() -> None:
    found = in_order([_progress(10, 20), _progress(5, 10), _progress(21, 30)])
    assert found == {Partition("t", 0): [_progress(5, 20), _progress(21, 30)]}


def test_ranges_that_have_ended_are_not_read_again() -> None:
    assert in_order([_progress(10, 10), _progress(10, 20), _progress(30, 30)]) == {
        Partition("t", 0): [_progress(10, 20)]
    }
    assert in_order([_progress(10, 10), _progress(20, 20)]) == {
        Partition("t", 0): [_progress(20, 20)]
    }


def _part(start: int, end: int) -> Range:
    return Range("t", 0, "one", start, end)


@pytest.mark.parametrize(("start", "end"), [(3, 9), (3, 3), (9, 9), (5, 7)])
def test_ranges_within_the_log_stay_whole(start: int, end: int) -> None:
    log = Available(3, 9)
    assert existing(_part(start, end), log, fail_on_data_loss=True) == _part(start, end)


@pytest.mark.parametrize(
    ("start", "end", "message", "part"),
    [
        (1, 5, "starts at offset 1, and the first available record has offset 3", (3, 5)),
        (4, 20, "ends at offset 20, and the partition at offset 9", (4, 9)),
        (0, 2, "starts at offset 0, and the first available record has offset 3", (2, 2)),
        (12, 20, "ends at offset 20, and the partition at offset 9", (9, 9)),
    ],
)
def test_records_that_do_not_exist_fail_a_read_unless_they_may_be_lost(
    start: int, end: int, message: str, part: tuple[int, int]
) -> None:
    log = Available(3, 9)
    with pytest.raises(FiresteelError, match=f"topic t, partition 0: the read {message}"):
        existing(_part(start, end), log, fail_on_data_loss=True)
    assert existing(_part(start, end), log, fail_on_data_loss=False) == _part(*part)


@pytest.mark.parametrize("fails", [True, False])
def test_a_read_does_not_start_after_its_end(fails: bool) -> None:
    with pytest.raises(FiresteelError, match="starts at offset 300, after its end at offset 9"):
        existing(_part(300, 9), Available(3, 9), fail_on_data_loss=fails)
