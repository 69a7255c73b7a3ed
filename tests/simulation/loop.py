"""An asyncio event loop on virtual time, shared by all simulated processes.

When nothing is ready, time jumps to the next timer. There is no selector, no socket and no thread:
what would run in an executor runs inline, and its result is delivered after a drawn delay.

Each operating system process that is simulated is a `ProcessState`, kept in a context variable: a
callback belongs to the process whose code scheduled it. So a process can be killed (its callbacks
are dropped and its tasks never run again, without any clean-up) and paused (its callbacks are held
back until it is resumed, as by SIGSTOP and SIGCONT).

Coroutines of a killed process are kept until `dispose`: a coroutine that is garbage collected runs
its `finally` blocks, which no killed process does.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import heapq
import itertools
import math
import random
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

START_S = 1000.0
STEPS_AT_ONE_INSTANT_MAX = 200_000  # more without time passing is an endless loop
INLINE_DELAY_S = (0.0002, 0.003)  # of work in a thread
WAKE_DELAY_S = (0.0005, 0.05)  # from a process' resumption until it has read what has arrived


class ProcessState:
    """The loop's view of a simulated process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.tasks: set[asyncio.Task[Any]] = set()
        self.held: list[Handle] = []  # while paused
        self.held_io: list[Handle] = []  # arrived while paused
        self.reading_until = 0.0  # it is still reading what arrived while it was paused
        self.signal_handlers: dict[int, Callable[[], None]] = {}
        self.context = contextvars.copy_context()
        self.context.run(CURRENT.set, self)


CURRENT: contextvars.ContextVar[ProcessState | None] = contextvars.ContextVar(
    "simulated_process", default=None
)


class Handle:
    """A scheduled callback; what `call_soon`, `call_later` and `call_at` return."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_when", "process")

    def __init__(
        self,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: contextvars.Context,
        process: ProcessState | None,
        when: float,
    ) -> None:
        self._callback: Callable[..., Any] | None = callback
        self._args = args
        self._context = context
        self._when = when
        self._cancelled = False
        self.process = process

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = None
        self._args = ()

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when


class BlockingExecutor(ABC):
    """Runs what may block (threads.py)."""

    @abstractmethod
    def submit(self, work: Callable[..., Any], /, *args: Any) -> Any:
        """Returns a future of the loop."""


class VirtualLoop(asyncio.AbstractEventLoop):
    """Calls `on_error(process, where, error)` for exceptions that nothing catches."""

    def __init__(
        self,
        chance: random.Random,
        on_error: Callable[[ProcessState | None, str, BaseException | None], None],
    ) -> None:
        self.chance = chance
        self.steps = 0
        self._on_error = on_error
        self._now = START_S
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._order = itertools.count()
        self._in_order: dict[tuple[int, object], float] = {}  # last delivery per executor
        self._dead: list[ProcessState] = []
        self.at_disposal: list[Callable[[], None]] = []
        self._disposed = False
        self._running = False
        self._stopped = False

    # ---- time

    def time(self) -> float:
        return self._now

    def run_until(self, end: float) -> None:
        """Runs everything due by `end`; time is `end` afterwards."""
        with self._as_running_loop():
            while True:
                self._run_ready()
                if self._stopped:
                    return
                if not self._timers or self._timers[0][0] > end:
                    break
                # Time always passes, so that a timer that rounding makes early is not early again.
                self._now = max(math.nextafter(self._now, math.inf), self._timers[0][0])
                while self._timers and self._timers[0][0] <= self._now:
                    handle = heapq.heappop(self._timers)[2]
                    if not handle._cancelled:
                        self._ready.append(handle)
            self._now = max(self._now, end)

    def stop(self) -> None:
        """Nothing runs any more, after the current callback."""
        self._stopped = True

    def _run_ready(self) -> None:
        ready = self._ready
        steps = 0
        while ready and not self._stopped:
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle.process
            if process is not None and (process.paused or not process.alive):
                if process.alive:
                    process.held.append(handle)
                continue
            steps += 1
            if steps > STEPS_AT_ONE_INSTANT_MAX:
                raise AssertionError(f"endless loop: {handle._callback} of {process}")
            callback = handle._callback
            assert callback is not None
            try:
                handle._context.run(callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except AssertionError as error:
                if process is None:
                    raise
                self._on_error(process, f"in {callback}", error)
            except Exception as error:
                self._on_error(process, f"in {callback}", error)
        self.steps += steps

    @contextlib.contextmanager
    def _as_running_loop(self) -> Iterator[None]:
        asyncio.events._set_running_loop(self)
        self._running = True
        collecting = gc.isenabled()
        gc.disable()  # a collection runs finalizers at a moment that no seed decides
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._finalize_generator)
        try:
            yield
        finally:
            sys.set_asyncgen_hooks(*hooks)
            if collecting:
                gc.enable()
            self._running = False
            asyncio.events._set_running_loop(None)

    def _finalize_generator(self, generator: Any) -> None:
        """An abandoned generator is closed, unless its process is dead."""
        process = CURRENT.get()
        if process is not None and process.alive and not self._disposed:
            self.create_task(generator.aclose())

    # ---- scheduling

    def call_soon(
        self,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        if context is None:
            context = contextvars.copy_context()
        handle = Handle(callback, args, context, context.get(CURRENT), self._now)
        if not self._disposed:
            self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        if context is None:
            context = contextvars.copy_context()
        handle = Handle(callback, args, context, context.get(CURRENT), when)
        if not self._disposed:
            self._push(when, handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def deliver_at(
        self, when: float, process: ProcessState, callback: Callable[..., Any], *args: Any
    ) -> Handle:
        """Input from outside arrives at a process: read now, or some time after it is resumed."""

        def arrive() -> None:
            if not process.alive:
                return
            handle = Handle(callback, args, process.context, process, self._now)
            if process.paused:
                process.held_io.append(handle)
            elif process.reading_until > self._now:  # after the earlier messages
                self._push(process.reading_until, handle)
            else:
                self._ready.append(handle)

        handle = Handle(arrive, (), OUTSIDE, None, when)
        self._push(when, handle)
        return handle

    def _push(self, when: float, handle: Handle) -> None:
        heapq.heappush(self._timers, (when, next(self._order), handle))

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Any,
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=str(name) if name else "", context=context)
        process = CURRENT.get() if context is None else context.get(CURRENT)
        if process is not None:
            process.tasks.add(task)
            task.add_done_callback(process.tasks.discard, context=OUTSIDE)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Runs `func` immediately; its result arrives later, in the executor's order."""
        if isinstance(executor, BlockingExecutor):
            return executor.submit(func, *args)
        future = self.create_future()
        try:
            result, error = func(*args), None
        except BaseException as raised:
            result, error = None, raised

        def finish() -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        when = self._now + self.chance.uniform(*INLINE_DELAY_S)
        if executor is not None:
            key = (id(CURRENT.get()), executor)
            when = self._in_order[key] = max(when, self._in_order.get(key, 0.0))
        self.call_at(when, finish)
        return future

    def add_signal_handler(self, sig: int, callback: Callable[..., Any], *args: Any) -> None:
        process = CURRENT.get()
        assert process is not None, "only processes have signal handlers"
        process.signal_handlers[sig] = lambda: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:
        process = CURRENT.get()
        return process is not None and process.signal_handlers.pop(sig, None) is not None

    # ---- life and death of processes

    def kill(self, process: ProcessState) -> None:
        """Nothing of it runs any more, not even its `finally` blocks."""
        process.alive = False
        process.held.clear()
        process.held_io.clear()
        for task in process.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._dead.append(process)

    def pause(self, process: ProcessState) -> None:
        process.paused = True

    def resume(self, process: ProcessState) -> None:
        """Resumes the process. Expired timers fire immediately, queued messages a moment later."""
        if not process.paused:
            return
        process.paused = False
        self._ready.extend(process.held)
        process.held.clear()
        arrived, process.held_io = process.held_io, []
        process.reading_until = self._now + self.chance.uniform(*WAKE_DELAY_S)
        for handle in arrived:
            self._push(process.reading_until, handle)

    def dispose(self, living: list[ProcessState]) -> None:
        """Ends every coroutine, in a world where nothing can be scheduled any more."""
        self._disposed = True
        self._ready.clear()
        self._timers.clear()
        for act in list(self.at_disposal):
            act()
        with self._as_running_loop():
            for process in [*living, *self._dead]:
                process.alive = False
                for task in list(process.tasks):
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    for _ in range(20):  # an `await` in a `finally` block makes close() fail
                        try:
                            task.get_coro().close()  # type: ignore[union-attr]
                            break
                        except BaseException:
                            continue
                process.tasks.clear()
        self._dead.clear()

    # ---- what else asyncio wants of a loop

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        pass

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._disposed

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._disposed:
            self._on_error(CURRENT.get(), str(context.get("message", "")), context.get("exception"))

    def report(self, where: str, error: BaseException) -> None:
        """An error that nothing else will show."""
        if not self._disposed:
            self._on_error(CURRENT.get(), where, error)

    def get_task_factory(self) -> None:
        return None


OUTSIDE = contextvars.Context()  # of the simulation itself: no process
