"""Threads that outlive their job: they are found, named, and shown where they hang."""

from __future__ import annotations

import sys
import threading
import time

from taskexecutor.executor.exchange.registry import PartitionRegistry
from taskexecutor.executor.job_threads import JobThreads
from tests.waiting import eventually


def test_a_thread_that_never_ends_is_named_and_shown_where_it_hangs() -> None:
    threads = JobThreads()
    release = threading.Event()

    def hang_here() -> None:
        release.wait()

    thread = threading.Thread(target=hang_here, name="write rows (1)", daemon=True)
    thread.start()
    started = time.monotonic()
    (left,) = threads.join(0.1)
    assert time.monotonic() - started >= 0.1
    assert left.name == "write rows (1)"
    assert "in hang_here" in left.stack and "release.wait()" in left.stack
    release.set()
    assert threads.join(60.0) == []  # a thread that ends in time is waited for
    assert not thread.is_alive()


def test_threads_of_before_and_threads_of_the_process_are_not_the_jobs() -> None:
    release = threading.Event()
    before = threading.Thread(target=release.wait, daemon=True)
    before.start()
    threads = JobThreads()
    registry = PartitionRegistry(timeout_s=60.0)
    watch = threading.Thread(target=registry.close, daemon=True)
    with registry._changed:  # it waits for the lock, like a thread that starts in the exchange
        watch.start()
        eventually(lambda: _begun(watch), "the thread has started")
        started = time.monotonic()
        assert threads.join(60.0) == []
        assert time.monotonic() - started < 30.0
    release.set()
    before.join()
    watch.join()


def _begun(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "close":
            return True
        frame = frame.f_back
    return False
