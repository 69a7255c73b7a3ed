"""The calls of one subtask, on an event loop in a separate thread.

The task's thread feeds rows and markers and takes released results. The two sides share deques,
whose ends are atomic, and wake each other: the loop wakes the task's thread by a mail, the task's
thread wakes the loop by `call_soon_threadsafe`. All other state belongs to the loop's thread.

A worker makes one call after another while there are rows and capacity: an asyncio task per row
would double the cost of a call. All calls have the same timeout, so they time out in the order in
which they started, and one timer, for the oldest call, is enough.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any

from pyspark.sql import Row

from firesteel.async_functions import AsyncFunction, AsyncRetryStrategy
from firesteel.operator import Counter, TaskCancelled
from firesteel.operators import MapAsyncSpec
from taskexecutor.executor.job_threads import raise_in
from taskexecutor.executor.operators.map_async.queues import (
    Call,
    Marker,
    OrderedQueue,
    Queue,
    Released,
    UnorderedQueue,
)

# interval at which a thread that waits for the loop checks for the task's cancellation
_LOOK_S = 0.05
_GRACE_S = 1.0  # for cancelled calls to end
_CLOSE_S = 2.0  # for the loop of a cancelled task to end, including the function's close()
_INTERRUPT_S = 0.5  # after which a function that blocks the loop is interrupted


class CallFailed(Exception):
    """A call has failed permanently; the cause is the function's error."""

    def __init__(self, row: Row, error: BaseException, *, timed_out: bool) -> None:
        super().__init__(row)
        self.row = row
        self.error = error
        self.timed_out = timed_out  # with no further error


class _Calling:
    """A batch whose rows are being called. Counts the rows to know their indices."""

    __slots__ = ("_index", "rows", "source")

    def __init__(self, rows: Any, source: Iterator[Row]) -> None:
        self.rows = rows
        self.source = source
        self._index = 0

    def next(self) -> Call | None:
        for row in self.source:
            call = Call(self.rows, self._index, row)
            self._index += 1
            return call
        return None


class Calls:
    def __init__(
        self,
        spec: MapAsyncSpec,
        *,
        name: str,
        notify: Callable[[], None],
        cancelled: Callable[[], bool],
        timeouts: Counter,
        retries: Counter,
    ) -> None:
        """The loop's thread calls `notify` when a result is released or a call has failed, and not
        again before `taking`. `cancelled` returns whether the task is cancelled.
        """
        self._function = spec.function
        self._retry: AsyncRetryStrategy | None = spec.retry
        self._capacity = spec.capacity
        self._timeout_s = spec.timeout_s
        self._notify = notify
        self._cancelled = cancelled
        self._timeouts, self._retries = timeouts, retries
        self._invoke, self._on_timeout = _functions(spec)
        self.released: deque[Released] = deque()  # for the task's thread
        self.started = 0  # number of started calls
        self.failure: BaseException | None = None  # the first failure; a CallFailed, or a defect
        self._incoming: deque[_Calling | Marker] = deque()
        self._calling: _Calling | None = None  # the batch whose rows are being called
        queue = OrderedQueue if spec.ordered else UnorderedQueue
        self._queue: Queue = queue(self.released.append)
        self._in_flight: dict[Call, None] = {}  # in the order of their deadlines
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching = False  # a timer is set for the oldest call
        self._notified = False
        # no call starts until the task's thread has taken the released results
        self._throttled = False
        self._ended = False  # no more calls start
        self._loop = asyncio.new_event_loop()
        self._opened: Future[None] = Future()
        self._end = asyncio.Event()
        self._finishing = False  # `_end` is set
        self._close_error: BaseException | None = None
        context = contextvars.copy_context()  # with the task's names, for its log lines
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name=name, daemon=True
        )

    # -- the task's thread

    def open(self, context: Any) -> None:
        """Starts the loop and calls the function's `open`. Raises what `open` raises."""
        self._context = context
        self._thread.start()
        while True:
            try:
                return self._opened.result(_LOOK_S)
            except TimeoutError:
                if self._opened.done():
                    raise
                if self._cancelled():
                    raise TaskCancelled from None

    def feed(self, rows: Any, source: Iterator[Row]) -> None:
        """Starts calls for these rows as soon as there is capacity. The calls carry `rows`."""
        self._put(_Calling(rows, source))

    def mark(self, marker: Marker) -> None:
        self._put(marker)

    def taking(self) -> None:
        """Called before `released` is read."""
        self._notified = False

    def taken(self) -> None:
        """Called once `released` is empty."""
        if self._throttled:
            self._throttled = False
            self._call_soon(self._fill)

    def stop(self) -> None:
        """Prevents further calls from starting."""
        self._ended = True

    def close(self) -> None:
        """Cancels the calls in flight, calls the function's `close` and ends the thread. Raises
        what `close` raises. If a function never returns from native code, the thread stays, and the
        slot's process is replaced (taskexecutor.executor.job_threads).
        """
        if not self._thread.is_alive():
            self._loop.close()
            self._raise_close_error()
            return
        self._call_soon(self._finish)
        given_up_s = time.monotonic() + _CLOSE_S
        while self._thread.is_alive() and not self._cancelled():
            if not self._finishing and time.monotonic() > given_up_s:
                break
            self._thread.join(_LOOK_S)
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            raise_in(self._thread, TaskCancelled)
            self._thread.join(_INTERRUPT_S)
        self._raise_close_error()

    def _raise_close_error(self) -> None:
        error, self._close_error = self._close_error, None
        if error is not None and not self._cancelled():
            raise error

    def _put(self, item: _Calling | Marker) -> None:
        self._incoming.append(item)
        self._call_soon(self._fill)

    def _call_soon(self, action: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(action)
        except RuntimeError:
            if not self._loop.is_closed():  # after a failure, which has been reported
                raise

    # -- the loop's thread

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._main())
        except BaseException as error:  # the function has stopped the loop
            self.failure = self.failure or error
            if not self._opened.done():
                self._opened.set_exception(error)
            self._notify()
        try:
            loop.run_until_complete(self._ending())
        except BaseException as error:
            self._close_error = error
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    async def _main(self) -> None:
        try:
            if isinstance(self._function, AsyncFunction):
                await _awaited(self._function.open(self._context))
        except BaseException as error:
            self._opened.set_exception(error)
        else:
            self._opened.set_result(None)
            await self._end.wait()

    async def _ending(self) -> None:
        self._ended = True
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=_GRACE_S)
        if isinstance(self._function, AsyncFunction) and self._opened.exception() is None:
            await _awaited(self._function.close())
        await self._loop.shutdown_asyncgens()

    def _finish(self) -> None:
        self._ended = self._finishing = True
        self._end.set()
        if not self._opened.done():
            for task in asyncio.all_tasks(self._loop):
                task.cancel()

    def _fill(self) -> None:
        """Starts calls while there are rows and capacity."""
        while (call := self._next()) is not None:
            self._start(self._work(call))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failure = self.failure or error
            self._notify_soon()

    def _next(self) -> Call | None:
        """Returns the next call to start."""
        capacity, queue = self._capacity, self._queue
        if self._ended or queue.outstanding >= capacity:
            return None
        if len(self.released) >= 2 * capacity:
            self._throttled = True
            if len(self.released) >= 2 * capacity:  # `taken` is going to be called and resumes
                return None
            self._throttled = False
        while self._calling is None or (call := self._calling.next()) is None:
            self._calling = None
            if not self._incoming:
                return None
            item = self._incoming.popleft()
            if isinstance(item, Marker):
                queue.mark(item)
                self._notify_soon()
            else:
                self._calling = item
        self.started += 1
        queue.add(call)
        if self._timeout_s is not None:
            call.deadline_s = self._loop.time() + self._timeout_s
            self._in_flight[call] = None
            if not self._watching:
                self._watch(call)
        return call

    async def _work(self, call: Call) -> None:
        invoke = self._invoke if self._retry is None else self._with_retries
        task = asyncio.current_task()
        following: Call | None = call
        while following is not None:
            call = following
            call.task = task
            try:
                result = await invoke(call.row)
            except BaseException as error:
                if not call.timed_out and not self._ended:
                    self._failed(call, error)
                return
            if call.timed_out:
                return  # the function has swallowed its cancellation
            self._complete(call, result)
            following = self._next()

    async def _with_retries(self, row: Row) -> Any:
        retry = self._retry
        assert retry is not None
        attempt = 0
        while True:
            attempt += 1
            try:
                result = await self._invoke(row)
            except Exception as error:
                if not (retry.can_retry(attempt) and retry.retries_exception(error)):
                    raise
            else:
                if not (retry.can_retry(attempt) and retry.retries_result(result)):
                    return result
            self._retries.inc()
            await asyncio.sleep(retry.delay_s(attempt))

    def _complete(self, call: Call, result: Any) -> None:
        if self._timeout_s is not None:
            self._in_flight.pop(call, None)
        call.result = result
        self._queue.complete(call)
        self._notify_soon()
        # Several calls may have been released, and this worker starts only one.
        if self._queue.outstanding < self._capacity - 1 and (self._incoming or self._calling):
            self._fill()

    def _notify_soon(self) -> None:
        """Sends the mail after the loop's current iteration: one mail for many results."""
        if not self._notified and (self.released or self.failure is not None):
            self._notified = True
            self._loop.call_soon(self._notify)

    def _failed(self, call: Call, error: BaseException, *, timed_out: bool = False) -> None:
        if self.failure is None:
            self.failure = CallFailed(call.row, error, timed_out=timed_out)
        self._ended = True
        self._notify_soon()

    def _watch(self, oldest: Call) -> None:
        self._watching = True
        self._loop.call_at(oldest.deadline_s, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._watching = False
        now_s = self._loop.time()
        for call in list(
            itertools.takewhile(lambda call: call.deadline_s <= now_s, self._in_flight)
        ):
            del self._in_flight[call]
            self._time_out(call)
        oldest = next(iter(self._in_flight), None)
        if oldest is not None:
            self._watch(oldest)

    def _time_out(self, call: Call) -> None:
        call.timed_out = True
        self._timeouts.inc()
        if call.task is not None:
            call.task.cancel()
        self._start(self._handle_timeout(call))

    async def _handle_timeout(self, call: Call) -> None:
        try:
            if self._on_timeout is None:
                raise TimeoutError
            result = await _awaited(self._on_timeout(call.row))
        except BaseException as error:
            if not self._ended:
                unhandled = isinstance(error, TimeoutError) and not error.args
                self._failed(call, error, timed_out=unhandled)
            return
        self._complete(call, result)
        self._fill()


def _functions(
    spec: MapAsyncSpec,
) -> tuple[Callable[[Row], Any], Callable[[Row], Any] | None]:
    if isinstance(spec.function, AsyncFunction):
        return spec.function.async_invoke, spec.function.timeout
    return spec.function, spec.on_timeout


async def _awaited(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given
