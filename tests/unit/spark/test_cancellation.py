"""The thread that cancels Spark's work for tasks."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskexecutor.executor.columnar.jvm import cancellation
from taskexecutor.executor.columnar.jvm.cancellation import CancellationWatch
from tests.waiting import eventually


@pytest.fixture
def cancelled() -> queue.SimpleQueue[str]:
    return queue.SimpleQueue()


@pytest.fixture
def watch(cancelled: queue.SimpleQueue[str]) -> Iterator[CancellationWatch]:
    watch = CancellationWatch(cancelled.put)
    yield watch
    watch.stop()


def never() -> bool:
    return False


def switches(thread: threading.Thread | None) -> int:
    """How often the thread has waited."""
    assert thread is not None
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return int(status.partition("voluntary_ctxt_switches:")[2].split()[0])


def test_a_group_that_is_cancelled_is_cancelled_until_it_ends(
    watch: CancellationWatch, cancelled: queue.SimpleQueue[str]
) -> None:
    watch.add("others", never)
    watch.add("a", lambda: True)
    assert [cancelled.get(timeout=30) for _ in range(2)] == ["a", "a"]
    watch.remove("a")
    watch.remove("others")


def test_short_groups_do_not_wake_the_thread(watch: CancellationWatch) -> None:
    watch.add("first", never)
    watch.remove("first")
    before, began = switches(watch._thread), time.monotonic()
    bundles = 300
    for _ in range(bundles):
        watch.add("bundle", never)
        time.sleep(0.0005)  # a thread that was woken would run now
        watch.remove("bundle")
    intervals = (time.monotonic() - began) / cancellation._INTERVAL_S
    assert switches(watch._thread) - before < bundles / 3 + 4 * intervals


def test_a_group_after_a_long_pause_is_watched(
    watch: CancellationWatch,
    cancelled: queue.SimpleQueue[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cancellation, "_QUIET_INTERVALS", 0)
    watch.add("first", never)
    watch.remove("first")
    eventually(lambda: watch._asleep, "the watch sleeps")
    watch.add("a", lambda: True)
    assert cancelled.get(timeout=30) == "a"
    watch.remove("a")
