"""Threads of simulated processes that block: real code, in real threads, one at a time.

While such a thread runs, the loop waits for it; once it blocks or ends, the loop continues. The
loop delivers the event that it waits for to its process: a paused process keeps it blocked, and one
that is killed for ever. So nothing depends on how the machine schedules threads.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.loop import BlockingExecutor, VirtualLoop

Wake = Callable[[Any, BaseException | None], None]  # with a result, or an error to raise


class _Ended(BaseException):
    """Ends a thread with its world."""


class Thread:
    """Runs `work` immediately, until it blocks for the first time."""

    def __init__(self, loop: VirtualLoop, work: Callable[[], object]) -> None:
        self._loop = loop
        self._work = work
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._woken_with: tuple[Any, BaseException | None] = None, None
        self._ending = False
        self._failure: BaseException | None = None
        self._real = threading.Thread(
            target=contextvars.copy_context().run, args=(self._run,), daemon=True
        )
        loop.at_disposal.append(self._end)
        self._real.start()
        self._switch()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._ending:
                _THIS.set(self)
                self._work()
        except _Ended:
            pass
        except BaseException as failure:
            self._failure = failure
        self._loop.at_disposal.remove(self._end)
        self._back.release()

    def _switch(self) -> None:
        """On the loop: until the thread blocks or ends."""
        self._go.release()
        self._back.acquire()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _block(self) -> Any:
        self._back.release()
        self._go.acquire()
        if self._ending:
            raise _Ended
        result, error = self._woken_with
        if error is not None:
            raise error
        return result

    def _wake(self, result: Any, error: BaseException | None) -> None:
        self._woken_with = result, error
        self._switch()

    def _end(self) -> None:
        self._ending = True
        while self._real.is_alive():
            self._go.release()
            self._real.join(0.001)


_THIS: contextvars.ContextVar[Thread | None] = contextvars.ContextVar("thread", default=None)


def wait(loop: VirtualLoop, begin: Callable[[Wake], object]) -> Any:
    """Blocks the thread that calls it until `begin`'s argument is called, once."""
    thread = _THIS.get()
    assert thread is not None, "it would block the loop"
    context = contextvars.copy_context()  # of the thread's process
    begin(lambda result, error: loop.call_soon(thread._wake, result, error, context=context))
    return thread._block()


class Lock:
    """A lock between such threads."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._held = False
        self._waiting: deque[Wake] = deque()

    def __enter__(self) -> None:
        if self._held:
            wait(self._loop, self._waiting.append)
        self._held = True

    def __exit__(self, *exc: object) -> None:
        self._held = False
        if self._waiting:
            self._held = True
            self._waiting.popleft()(None, None)


class OneThread(BlockingExecutor):
    """An executor: one call after another."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], None]] = deque()
        self._busy = False

    def submit(self, work: Callable[..., Any], /, *args: Any) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        context = contextvars.copy_context()

        def call() -> None:
            try:
                result, error = work(*args), None
            except Exception as raised:
                result, error = None, raised
            self._loop.call_soon(_settle, future, result, error)

        self._calls.append(call)
        if not self._busy:
            self._busy = True
            self._loop.call_soon(Thread, self._loop, self._run, context=context)
        return future

    def shutdown(self, wait: bool = True) -> None:
        """Does nothing: submitted work is carried out."""

    def _run(self) -> None:
        while self._calls:
            self._calls.popleft()()
        self._busy = False


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
