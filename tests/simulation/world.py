"""One simulated world: its time, its randomness, its network, its processes, and its story.

Everything in a simulation follows from its seed. Nothing here sleeps, and nothing reads a clock.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import signal
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import structlog

from firesteel.common.ids import IdSource
from firesteel.common.process import StartFailed
from firesteel.common.service.platform import Platform
from tests.simulation.loop import CURRENT, OUTSIDE, START_S, ProcessState, VirtualLoop
from tests.simulation.transport import Network, Transport

STORY_LENGTH = 40_000  # lines kept
STORY_SHOWN = 120  # lines of a failure's message
WALL_S = 1_700_000_000.0  # the wall clock at the start


class SimulationFailed(AssertionError):
    """Something that must hold did not; the message gives the seed, and the end of the story."""


Program: TypeAlias = "Callable[[SimulatedProcess, Sequence[str]], Coroutine[Any, Any, None]]"


class SimulatedProcess(ProcessState):
    """One operating system process, running a program; also its `platform.processes`."""

    def __init__(
        self,
        world: World,
        name: str,
        program: str,
        arguments: Sequence[str],
        parent: SimulatedProcess | None,
    ) -> None:
        super().__init__(name)
        self.world = world
        self.program = program
        self.arguments = tuple(arguments)
        self.pid = next(world.pids)
        self.parent = parent  # dies with it, if that holds its lifeline
        self.returncode: int | None = None
        self.ready: dict[str, Any] | None = None
        self.on_end: list[Callable[[], None]] = []  # what the outside does about its end
        self.service: Any = None  # the object at the heart of the program, for checkers
        self._starting: list[Any] = []  # futures: it is ready, or has ended
        self._waiting: list[Any] = []  # futures: it has ended

    @property
    def platform(self) -> Platform:
        return Platform(
            clock=Clock(self.world.loop),
            transport=Transport(self.world.network),
            processes=self,
        )

    def announce_ready(self, **facts: Any) -> None:
        self.ready = facts
        self.world.note(self.name, f"is ready: {facts}")
        for future in self._starting:
            if not future.done():
                future.set_result(None)

    # ---- firesteel.common.service.platform.Processes

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        log_path: Path | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        lifeline: Literal["own", "inherit"] = "own",
        ready_timeout_s: float = 60.0,
    ) -> Child:
        program = argv[argv.index("-m") + 1]
        process = self.world.start(
            program,
            argv[argv.index("-m") + 2 :],
            parent=self if lifeline == "own" else None,
            crashes=self.world.chance(self.world.crash_at_start),
        )
        child = Child(process)
        if process.ready is None:
            future = self.world.loop.create_future()
            process._starting.append(future)
            timer = self.world.loop.call_later(
                ready_timeout_s, lambda: future.done() or future.set_result(None)
            )
            try:
                await future
            except BaseException:
                child.kill()
                raise
            finally:
                timer.cancel()
        if process.returncode is not None:
            raise StartFailed(f"{program} ended with code {process.returncode} before it was ready")
        if process.ready is None:
            child.kill()
            raise StartFailed(f"{program} was not ready within {ready_timeout_s:g} s")
        child.ready = json.loads(json.dumps(process.ready))
        return child

    def kill(self, pid: int) -> None:
        if (process := self.world.process(pid)) is not None:
            process.die(-signal.SIGKILL)

    # ---- its end

    def die(self, code: int, *, silently: bool = False) -> None:
        """At once. `silently`: with its machine, and all that runs there."""
        if not self.alive:
            return
        world = self.world
        world.note(self.name, f"dies ({'with its machine' if silently else code})")
        world.loop.kill(self)
        world.network.died(self, silently=silently)
        world.ended(self)
        self.returncode = code
        for child in [p for p in world.processes if p.parent is self]:
            child.die(-signal.SIGKILL, silently=silently)

        def reap() -> None:
            for future in [*self._starting, *self._waiting]:
                if not future.done():
                    future.set_result(None)

        world.after(world.between(0.001, 0.02), reap)

    def signal(self, number: int) -> None:
        if not self.alive:
            return
        if number == signal.SIGSTOP:
            self.pause()
        elif number == signal.SIGCONT:
            self.resume()
        elif number in self.signal_handlers and number != signal.SIGKILL:
            loop = self.world.loop
            loop.deliver_at(loop.time(), self, self.signal_handlers[number])
        else:
            self.die(-number)

    def pause(self) -> None:
        if self.alive and not self.paused:
            self.world.note(self.name, "is paused")
            self.world.loop.pause(self)
            self.world.network.paused(self)

    def resume(self) -> None:
        if self.alive and self.paused:
            self.world.note(self.name, "is resumed")
            self.world.loop.resume(self)

    async def _run(self, program: Program, arguments: Sequence[str]) -> None:
        code = 0
        try:
            await program(self, arguments)
        except SystemExit as error:
            code = int(error.code or 0)
        except Exception as error:
            self.world.crashed(self, error)
            code = 1
        if self.alive:
            self.world.after(0.0, lambda: self.die(code))


class Child:
    """`firesteel.common.service.platform.Process`: a process as its parent holds it."""

    def __init__(self, process: SimulatedProcess) -> None:
        self.ready: dict[str, Any] = {}
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        process = self._process
        if process.alive:
            future = process.world.loop.create_future()
            process._waiting.append(future)
            await future
        assert process.returncode is not None
        return process.returncode

    def signal(self, number: int) -> None:
        self._process.signal(number)

    def kill(self) -> None:
        self._process.die(-signal.SIGKILL)

    async def stop(self, grace_s: float = 5.0) -> int:
        world = self._process.world
        self.signal(signal.SIGTERM)
        timer = world.loop.call_later(grace_s, self.kill)
        try:
            return await self.wait()
        finally:
            timer.cancel()


class WorkerHandle:
    """Stands in for psutil's Process: `LocalDriver`'s handle of a process that it did not start."""

    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process

    def send_signal(self, number: int) -> None:
        self._process.signal(number)


class Clock:
    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.time()

    def time(self) -> float:
        return WALL_S + self._loop.time()


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.loop = VirtualLoop(self.random, self._uncaught)
        self.network = Network(self.loop, self.random)
        self.network.on_trap = lambda kind, connection: self.note(
            "trap", f"{kind} is lost, and with it the connection of {connection}"
        )
        self.pids = itertools.count(1001)
        self.processes: list[SimulatedProcess] = []  # those that live
        self.programs: dict[
            str, tuple[Program, tuple[float, float]]
        ] = {}  # and how long each takes to start
        self.crash_at_start = 0.0  # probability, of a process that another one starts
        # Events of the past, and whether they still are when they are handled: a core ignores them.
        self.stale: list[tuple[object, Callable[[], bool]]] = []
        self.failure: SimulationFailed | None = None
        self._names: dict[str, itertools.count[int]] = {}
        self._story: deque[tuple[float, str, object]] = deque(maxlen=STORY_LENGTH)

    @property
    def now(self) -> float:
        return self.loop.time()

    def ids(self) -> IdSource:
        """A source of ids for one process, drawn from this world's randomness."""
        return IdSource(self.random.randbytes(16))

    def between(self, least: float, most: float) -> float:
        return self.random.uniform(least, most)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def after(self, delay_s: float, action: Callable[[], object]) -> None:
        """The simulation itself acts: whatever process runs now has no part in it."""
        self.loop.call_later(delay_s, action, context=OUTSIDE)

    def run_until(self, end: float) -> None:
        with _capturing(self):
            self.loop.run_until(end)
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        with _capturing(self):
            self.loop.dispose(list(self.processes))

    # ---- processes

    def start(
        self,
        program: str,
        arguments: Sequence[str],
        *,
        parent: SimulatedProcess | None = None,
        crashes: bool = False,
    ) -> SimulatedProcess:
        main, (least_s, most_s) = self.programs[program]
        number = next(self._names.setdefault(program, itertools.count(1)))
        name = f"{program.rpartition('.')[2]}-{number}"
        process = SimulatedProcess(self, name, program, arguments, parent)
        self.processes.append(process)
        self.note(process.name, "starts")

        def begin() -> None:
            if crashes:
                process.die(1)
            elif process.alive:
                process.context.run(self.loop.create_task, process._run(main, arguments))

        self.after(self.between(least_s, most_s), begin)
        return process

    def process(self, pid: int) -> SimulatedProcess | None:
        return next((p for p in self.processes if p.pid == pid), None)

    def ended(self, process: SimulatedProcess) -> None:
        self.processes.remove(process)
        for act in process.on_end:
            act()

    def crashed(self, process: SimulatedProcess, error: Exception) -> None:
        if isinstance(error, SimulationFailed):
            self.failure = self.failure or error
            self.loop.stop()
        else:
            self._fail(f"{process.name} crashed: {error!r}", error)

    def _uncaught(
        self, process: ProcessState | None, where: str, error: BaseException | None
    ) -> None:
        name = process.name if process is not None else "the simulation"
        self._fail(f"{name}: {where}: {error!r}", error)

    def _fail(self, why: str, error: BaseException | None) -> None:
        if self.failure is None and not self.loop.is_closed():
            self.failure = self.failed(why)
            self.failure.__cause__ = error
            self.loop.stop()

    # ---- the story

    def note(self, who: str, what: object) -> None:
        """`what` is formatted only if the story is printed."""
        self._story.append((self.now - START_S, who, what))

    def logged(self, level: str, event: dict[str, Any]) -> None:
        """A log message of the process that runs."""
        process = CURRENT.get()
        self.note(process.name if process is not None else "", event)
        if event.get("exc_info") and not self.loop.is_closed():
            error = event["exc_info"]
            error = error if isinstance(error, BaseException) else sys.exc_info()[1]
            self._fail(
                f"{process.name if process else ''} logged {event['event']!r}: {error!r}", error
            )

    def story(self, about: str = "") -> str:
        """The last lines that mention `about`."""
        lines = (
            f"{at:9.3f} {who}: {' '.join(str(what).split())[:400]}" for at, who, what in self._story
        )
        return "\n".join([line for line in lines if about in line][-STORY_SHOWN:])

    def failed(self, why: str) -> SimulationFailed:
        return SimulationFailed(
            f"{why}\nat {self.now - START_S:.3f} s of seed {self.seed};"
            f" replay: make sim SEED={self.seed}\n{self.story()}"
        )


@contextlib.contextmanager
def _capturing(world: World) -> Iterator[None]:
    """Log messages become part of the story."""

    def capture(logger: object, level: str, event: dict[str, Any]) -> dict[str, Any]:
        world.logged(level, event)
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[capture],
        wrapper_class=structlog.make_filtering_bound_logger("INFO"),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)
