"""map_async: many calls in flight, their order, their timeouts, and what a checkpoint has of them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from firesteel import (
    AsyncFunction,
    ExponentialBackoffDelayRetryStrategy,
    FixedDelayRetryStrategy,
)
from firesteel.elements import MAX_TIMESTAMP_US, StreamStatus, Watermark
from firesteel.errors import FiresteelError
from firesteel.operator import TaskCancelled
from firesteel.operators import MapAsyncSpec
from firesteel.testing import OperatorHarness
from taskexecutor.executor.operators.map_async import calls as calls_module
from taskexecutor.executor.operators.map_async.map_async import ITEM_ROWS, MapAsync
from taskexecutor.executor.state import RestoredOperatorState
from tests.waiting import PATIENCE_S

SCHEMA = pa.schema([("x", pa.int64())])


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch([list(values)], schema=SCHEMA)


class Server:
    """Answers a call when the test says so."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.calls: list[int] = []
        self.cancelled: list[int] = []
        self.most = 0  # calls at a time

    async def ask(self, row: Row) -> Any:
        future = asyncio.get_running_loop().create_future()
        with self._changed:
            self.calls.append(row.x)
            self._waiting[row.x] = future
            self.most = max(self.most, len(self._waiting))
            self._changed.notify_all()
        try:
            return await future
        except asyncio.CancelledError:
            self.cancelled.append(row.x)
            raise

    def wait_for(self, *values: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: set(values) <= set(self._waiting), PATIENCE_S), (
                f"{values} are not all called: {self.calls}"
            )

    def answer(self, *values: int, result: Any = None) -> None:
        self.wait_for(*values)
        for value in values:
            future = self._waiting.pop(value)
            outcome = (value,) if result is None else result
            future.get_loop().call_soon_threadsafe(future.set_result, outcome)


@pytest.fixture
def server() -> Server:
    return Server()


@contextlib.contextmanager
def running(
    function: Any, restored: RestoredOperatorState | None = None, **options: Any
) -> Iterator[OperatorHarness]:
    """Closed in the end, as after a failure."""
    harness = OperatorHarness(
        MapAsync(MapAsyncSpec(function=function, **options)),
        [SCHEMA],
        output_schema=SCHEMA,
        name="MapAsync(f)",
        restored=restored,
    )
    try:
        harness.open()
        yield harness
    finally:
        harness.close()


def until(harness: OperatorHarness, condition: Callable[[], bool]) -> None:
    """Runs mails, as a task's loop does, until it is so."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"did not happen; emitted {harness.rows()}"
        harness.environment.yield_to_mail(1.0)


def finish(harness: OperatorHarness, *values: int) -> None:
    """Processes these rows, which are the last."""
    harness.process(rows(*values))
    harness.finish()


def emitted(harness: OperatorHarness) -> list[Any]:
    """Rows as numbers, between watermarks and statuses."""
    found: list[Any] = []
    for element in harness.elements:
        if isinstance(element, pa.RecordBatch):
            found += element["x"].to_pylist()
        else:
            found.append(element)
    return found


async def negative(row: Row) -> Any:
    await asyncio.sleep(0)
    return (-row.x,)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("capacity", [1, 7, 1000])
def test_every_row_has_its_result(ordered: bool, capacity: int) -> None:
    with running(negative, ordered=ordered, capacity=capacity) as harness:
        for start in range(0, 500, 50):
            harness.process(rows(*range(start, start + 50)))
        harness.finish()
        results = emitted(harness)[:-1]
    assert (results if ordered else sorted(results, reverse=True)) == [-x for x in range(500)]


def test_results_keep_the_order_of_rows(server: Server) -> None:
    with running(server.ask) as harness:
        harness.process(rows(1, 2, 3))
        server.answer(3)
        server.answer(2)
        server.wait_for(1)
        harness.flush()
        assert emitted(harness) == []
        server.answer(1)
        until(harness, lambda: emitted(harness) == [1, 2, 3])


def test_results_come_as_they_are_ready_but_stay_between_watermarks(server: Server) -> None:
    with running(server.ask, ordered=False) as harness:
        harness.process(rows(1, 2))
        harness.watermark(10)
        harness.process(rows(3))
        harness.watermark(20)
        server.answer(3)
        server.answer(2)
        until(harness, lambda: emitted(harness) == [2])
        server.answer(1)
        expected = [2, 1, Watermark(10), 3, Watermark(20)]
        until(harness, lambda: emitted(harness) == expected)
        harness.watermark(30)  # nothing is in flight
        assert emitted(harness) == [*expected, Watermark(30)]


@pytest.mark.parametrize("ordered", [True, False])
def test_watermarks_and_statuses_wait_for_the_rows_before_them(
    server: Server, ordered: bool
) -> None:
    with running(server.ask, ordered=ordered) as harness:
        harness.process(rows(1))
        harness.watermark(10)
        harness.idle()
        assert emitted(harness) == []
        server.answer(1)
        until(harness, lambda: len(harness.elements) == 3)
        assert emitted(harness) == [1, Watermark(10), StreamStatus(True)]


def test_no_more_calls_are_in_flight_than_the_capacity(server: Server) -> None:
    with running(server.ask, capacity=2, ordered=False) as harness:
        harness.process(rows(1, 2, 3))
        server.wait_for(1, 2)
        assert not harness.operator.full  # one row waits
        harness.process(rows(4))
        assert harness.operator.full
        server.answer(1)
        until(harness, lambda: not harness.operator.full)
        for value in (2, 3, 4):
            server.answer(value)
        harness.finish()
    assert server.most == 2
    assert server.calls == [1, 2, 3, 4]


def test_results_behind_a_slow_call_count_as_in_flight(server: Server) -> None:
    with running(server.ask, capacity=2) as harness:
        harness.process(rows(1, 2, 3))
        server.answer(2)
        server.answer(1)
        server.answer(3)
        harness.finish()
    assert server.calls == [1, 2, 3]


def test_the_end_of_input_waits_for_calls_and_precedes_the_end_of_time(
    server: Server,
) -> None:
    with running(server.ask) as harness:
        harness.process(rows(1, 2))
        answering = threading.Thread(target=lambda: server.answer(2, 1))
        answering.start()
        harness.finish()
        answering.join()
        assert emitted(harness) == [1, 2, Watermark(MAX_TIMESTAMP_US)]


def test_a_list_is_any_number_of_rows() -> None:
    async def repeated(row: Row) -> Any:
        return [{"x": row.x}] * row.x

    with running(repeated) as harness:
        finish(harness, 2, 0, 3)
        assert emitted(harness)[:-1] == [2, 2, 3, 3, 3]


# -- failures


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda: 1 // 0, r"the function failed for Row\(x=7\): ZeroDivisionError"),
        (lambda: None, r"returned None for Row\(x=7\).*an empty list drops the row"),
        (lambda: 5, r"returned a int for Row\(x=7\); it must return a Row"),
        (lambda: "ab", "returned a str"),
        (lambda: [5], "yielded a int; it must be a Row"),
        (lambda: ("a",), "column 'x' is int64 and cannot hold 'a'"),
        (lambda: exec("raise SystemExit(3)"), r"failed for Row\(x=7\): SystemExit"),
        (lambda: exec("raise asyncio.CancelledError", globals()), "CancelledError"),
    ],
)
def test_what_is_no_result_fails_the_job_and_names_the_row(
    result: Callable[[], Any], message: str
) -> None:
    async def function(row: Row) -> Any:
        await asyncio.sleep(0)
        return result()

    with running(function) as harness, pytest.raises(FiresteelError, match=f"^MapAsync.*{message}"):
        finish(harness, 7)


def test_a_function_that_stops_the_event_loop_fails_the_job() -> None:
    async def stops(row: Row) -> Any:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(60)

    with running(stops) as harness, pytest.raises(RuntimeError, match="loop stopped"):
        finish(harness, 1)


def test_a_call_that_takes_too_long_is_cancelled_and_fails_the_job(server: Server) -> None:
    with (
        running(server.ask, timeout_s=0.05) as harness,
        pytest.raises(FiresteelError, match=r"Row\(x=7\) took longer than its timeout of 0.05 s"),
    ):
        finish(harness, 7)
    assert server.cancelled == [7]
    assert harness.metrics.counter("numAsyncTimeouts").value == 1


@pytest.mark.parametrize("ordered", [True, False])
def test_a_row_whose_call_takes_too_long_has_the_handlers_result(
    server: Server, ordered: bool
) -> None:
    async def instead(row: Row) -> Any:
        await asyncio.sleep(0)
        return (-row.x,)

    with running(
        server.ask, timeout_s=0.2, on_timeout=instead, ordered=ordered, capacity=2
    ) as harness:
        harness.process(rows(1, 2, 3))
        server.answer(2)
        harness.finish()
        assert sorted(emitted(harness)[:-1]) == [-3, -1, 2]


def test_a_function_that_ignores_its_cancellation_is_not_waited_for() -> None:
    released = threading.Event()

    async def stubborn(row: Row) -> Any:
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        return (row.x,)

    with running(stubborn, timeout_s=0.05, on_timeout=lambda row: (-row.x,)) as harness:
        finish(harness, 1, 2)
        assert emitted(harness)[:-1] == [-1, -2]
        released.set()


def test_what_the_handler_raises_is_said() -> None:
    async def slow(row: Row) -> Any:
        await asyncio.sleep(PATIENCE_S)

    def fails(row: Row) -> Any:
        raise ValueError("no price")

    with (
        running(slow, timeout_s=0.01, on_timeout=fails) as harness,
        pytest.raises(FiresteelError, match=r"failed for Row\(x=1\): ValueError: no price"),
    ):
        finish(harness, 1)


# -- retries


class Flaky:
    """Fails, or gives a wrong result, some times for each row."""

    def __init__(self, wrong: int, outcome: Callable[[], Any]) -> None:
        self.wrong = wrong
        self.outcome = outcome
        self.attempts: dict[int, int] = {}

    async def __call__(self, row: Row) -> Any:
        attempt = self.attempts[row.x] = self.attempts.get(row.x, 0) + 1
        return self.outcome() if attempt <= self.wrong else (row.x,)


def broken() -> Any:
    raise OSError("connection reset")


def test_calls_are_repeated_after_exceptions() -> None:
    flaky = Flaky(2, broken)
    retry = FixedDelayRetryStrategy(max_attempts=2, delay="1 ms")
    with running(flaky, retry=retry) as harness:
        finish(harness, 1, 2)
        assert emitted(harness)[:-1] == [1, 2]
    assert flaky.attempts == {1: 3, 2: 3}
    assert harness.metrics.counter("numAsyncRetries").value == 4


def test_calls_are_repeated_while_a_predicate_says_so() -> None:
    flaky = Flaky(2, lambda: (-1,))
    retry = ExponentialBackoffDelayRetryStrategy(
        max_attempts=5,
        initial_delay="1 ms",
        max_retry_delay="2 ms",
        result_predicate=lambda result: result == (-1,),
    )
    with running(flaky, retry=retry) as harness:
        finish(harness, 1)
        assert emitted(harness)[:-1] == [1]
    assert flaky.attempts == {1: 3}


def test_the_last_attempt_counts() -> None:
    retry = FixedDelayRetryStrategy(
        max_attempts=1, delay="1 ms", result_predicate=lambda result: result == (-1,)
    )
    with running(Flaky(9, lambda: (-1,)), retry=retry) as harness:
        finish(harness, 1)
        assert emitted(harness)[:-1] == [-1]
    flaky = Flaky(9, broken)
    retry = FixedDelayRetryStrategy(max_attempts=1, delay="1 ms")
    with (
        running(flaky, retry=retry) as harness,
        pytest.raises(FiresteelError, match=r"Row\(x=1\): OSError: connection reset"),
    ):
        finish(harness, 1)
    assert flaky.attempts == {1: 2}


def test_other_exceptions_are_not_repeated() -> None:
    flaky = Flaky(1, broken)
    retry = FixedDelayRetryStrategy(
        max_attempts=5, delay="1 ms", exception_predicate=lambda error: isinstance(error, KeyError)
    )
    with running(flaky, retry=retry) as harness, pytest.raises(FiresteelError, match="reset"):
        finish(harness, 1)
    assert flaky.attempts == {1: 1}


def test_retries_share_the_timeout_of_the_row() -> None:
    retry = FixedDelayRetryStrategy(max_attempts=1_000_000, delay="1 ms")
    with (
        running(Flaky(10**9, broken), retry=retry, timeout_s=0.05) as harness,
        pytest.raises(FiresteelError, match="took longer than its timeout"),
    ):
        finish(harness, 1)


def test_delays_grow_up_to_their_bound() -> None:
    retry = ExponentialBackoffDelayRetryStrategy(
        max_attempts=3, initial_delay="100 ms", max_retry_delay="1 s", multiplier=3
    )
    delays_s = [retry.delay_s(attempt) for attempt in (1, 2, 3, 4, 10**6)]
    assert delays_s == pytest.approx([0.1, 0.3, 0.9, 1.0, 1.0])


# -- the function's life


class Session(AsyncFunction):
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.loops: set[Any] = set()

    async def open(self, context: Any) -> None:
        await asyncio.sleep(0)
        self.loops.add(asyncio.get_running_loop())
        self.calls.append(f"open {context.task.subtask}")
        self.asked = context.counter("asked")

    async def async_invoke(self, value: Row) -> Any:
        self.loops.add(asyncio.get_running_loop())
        self.asked.inc()
        if value.x < 0:
            await asyncio.sleep(PATIENCE_S)
        return (value.x,)

    def timeout(self, value: Row) -> Any:
        return [(value.x,), (0,)]

    async def close(self) -> None:
        self.loops.add(asyncio.get_running_loop())
        self.calls.append("close")


def test_a_function_opens_and_closes_on_the_loop_of_its_calls() -> None:
    session = Session()
    with running(session, timeout_s=0.05) as harness:
        finish(harness, 1, -2)
        assert emitted(harness)[:-1] == [1, -2, 0]
        assert session.calls == ["open 0"]
    assert session.calls == ["open 0", "close"]
    assert len(session.loops) == 1
    assert harness.metrics.counter("asked").value == 2


def test_what_open_and_close_raise_fails_the_job() -> None:
    class Bad(Session):
        def __init__(self, where: str) -> None:
            super().__init__()
            self.where = where

        async def open(self, context: Any) -> None:
            if self.where == "open":
                raise OSError("no route to host")

        async def close(self) -> None:
            raise OSError("already closed")

    with (
        pytest.raises(FiresteelError, match=r"open\(\) failed: OSError: no route to host"),
        running(Bad("open")),
    ):
        raise AssertionError("opened")
    with (
        pytest.raises(FiresteelError, match=r"close\(\) failed: OSError: already closed"),
        running(Bad("close")),
    ):
        pass


def test_an_ended_task_cancels_its_calls_and_closes_its_function(server: Server) -> None:
    class Asking(Session):
        async def async_invoke(self, value: Row) -> Any:
            return await server.ask(value)

    session = Asking()
    with running(session) as harness:
        harness.process(rows(1, 2))
        server.wait_for(1, 2)
        harness.cancel()
        with pytest.raises(TaskCancelled):
            harness.environment.yield_to_mail(PATIENCE_S)
    assert sorted(server.cancelled) == [1, 2]
    assert session.calls == ["open 0", "close"]


def test_a_cancelled_task_does_not_wait_for_what_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls_module, "_GRACE_S", 0.01)
    monkeypatch.setattr(calls_module, "_CLOSE_S", 0.1)
    spinning, started = threading.Event(), threading.Event()
    spinning.set()

    async def spins(row: Row) -> Any:
        started.set()
        while spinning.is_set():
            pass  # interrupted here

    with running(spins) as harness:
        harness.process(rows(1))
        assert started.wait(PATIENCE_S)
        harness.cancel()
        thread = harness.operator._calls._thread  # type: ignore[attr-defined]
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_after_a_stop_nothing_is_emitted(server: Server) -> None:
    with running(server.ask, capacity=1) as harness:
        harness.process(rows(1, 2))
        server.wait_for(1)
        harness.operator.stop()
        server.answer(1)
        harness.flush()
        assert emitted(harness) == []
    assert server.calls == [1]


# -- checkpoints


def test_rows_in_flight_are_called_again_after_a_restore(server: Server) -> None:
    with running(server.ask, capacity=2) as harness:
        harness.process(rows(1, 2, 3, 4))
        harness.watermark(10)
        harness.process(rows(5))
        server.answer(1)
        until(harness, lambda: emitted(harness) == [1])
        server.answer(3)  # waits for 2
        server.wait_for(2)
        restored = harness.checkpoint(1)
    again = Server()
    with running(again.ask, restored) as harness:
        again.answer(2, 3, 4, 5)
        until(harness, lambda: emitted(harness) == [2, 3, 4, 5])
        assert not harness.checkpoint(2).lists["rows"]


def test_out_of_order_exactly_the_rows_without_results_are_kept(server: Server) -> None:
    with running(server.ask, ordered=False) as harness:
        harness.process(rows(1, 2, 3))
        server.answer(2)
        until(harness, lambda: emitted(harness) == [2])
        restored = harness.checkpoint(1)
    with running(negative, restored, ordered=False) as harness:
        harness.finish()
        assert sorted(emitted(harness)[:-1]) == [-3, -1]


def test_rows_in_flight_are_divided_among_more_subtasks(server: Server) -> None:
    count = 5 * ITEM_ROWS
    with running(server.ask) as harness:
        harness.process(rows(*range(count)))
        restored = harness.checkpoint(1)
    items = restored.lists["rows"]
    assert len(items) == 5
    found: list[int] = []
    for share in (items[:3], items[3:]):
        with running(negative, RestoredOperatorState(lists={"rows": share})) as harness:
            harness.finish()
            found += emitted(harness)[:-1]
    assert found == [-x for x in range(count)]


def test_a_finished_operator_keeps_nothing(server: Server) -> None:
    with running(negative) as harness:
        finish(harness, 1)
        assert harness.checkpoint(1, finished=True).lists == {"rows": []}
