"""Lines of several logs in the order of time."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from firesteel.common.job_log.lines import LogLine
from firesteel.common.job_log.merge import HELD_MAX, Merge


def lines(*times_us: int) -> list[LogLine]:
    return [LogLine(time_us=at, process="p", text="") for at in times_us]


def times(found: list[LogLine]) -> list[int]:
    return [line.time_us for line in found]


def test_a_line_waits_for_every_log_that_can_have_an_older_one() -> None:
    merge: Merge[str] = Merge()
    merge.add("a")
    merge.add("b")
    merge.feed("a", lines(1, 4, 9))
    assert merge.take() == []
    merge.feed("b", lines(2, 4))
    assert times(merge.take()) == [1, 2, 4, 4]
    merge.feed("b", (), complete_us=8)
    assert merge.take() == []
    merge.feed("b", (), complete_us=9)
    assert times(merge.take()) == [9]


def test_logs_that_end_or_are_silent_hold_nothing_back() -> None:
    merge: Merge[str] = Merge()
    for source in "abc":
        merge.add(source)
    merge.feed("a", lines(5))
    merge.feed("b", lines(7))
    merge.pass_over("c")
    assert times(merge.take()) == [5]
    merge.end("a")
    assert times(merge.take()) == [7]
    merge.feed("c", lines(3))
    merge.feed("b", lines(8))
    assert times(merge.take()) == [3], "late"
    merge.end("b")
    merge.end("c")
    assert times(merge.take()) == [8]


def test_a_log_that_is_far_ahead_wants_no_more() -> None:
    merge: Merge[str] = Merge()
    merge.add("a")
    merge.add("b")
    assert merge.wants("a")
    merge.feed("a", lines(*range(1, HELD_MAX + 1)))
    assert not merge.wants("a")
    assert merge.wants("b")
    merge.feed("b", (), complete_us=10)
    assert len(merge.take()) == 10
    assert merge.wants("a")


@given(
    st.lists(st.lists(st.integers(1, 50), max_size=20), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=30),
)
def test_whatever_comes_when_all_lines_come_in_order(
    logs: list[list[int]], arrivals: list[tuple[int, int]]
) -> None:
    merge: Merge[int] = Merge()
    left = {number: sorted(log) for number, log in enumerate(logs)}
    for number in left:
        merge.add(number)
    taken: list[int] = []
    for number, count in itertools.chain(arrivals, ((n, 20) for n in range(len(logs)))):
        if number not in left:
            continue
        merge.feed(number, lines(*left[number][:count]))
        del left[number][:count]
        if not left[number]:
            merge.end(number)
            del left[number]
        taken += times(merge.take())
    assert taken == sorted(at for log in logs for at in log)
