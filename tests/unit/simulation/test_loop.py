from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.simulation.loop import START_S, ProcessState, VirtualLoop


class Errors(list[str]):
    def __call__(self, process: ProcessState | None, where: str, error: object) -> None:
        self.append(f"{process.name if process else ''}: {error!r}")


@pytest.fixture
def errors() -> Errors:
    return Errors()


@pytest.fixture
def loop(errors: Errors) -> VirtualLoop:
    return VirtualLoop(random.Random(1), errors)


def start(
    loop: VirtualLoop, name: str, main: Callable[[], Coroutine[Any, Any, None]]
) -> ProcessState:
    process = ProcessState(name)
    process.context.run(loop.create_task, main())
    return process


def test_time_jumps_to_the_next_timer(loop: VirtualLoop) -> None:
    times: list[float] = []

    async def main() -> None:
        for seconds in (5, 3600):
            await asyncio.sleep(seconds)
            times.append(round(loop.time() - START_S))

    start(loop, "a", main)
    loop.run_until(START_S + 10_000)
    assert times == [5, 3605]
    assert loop.time() == START_S + 10_000


def test_work_in_threads_runs_inline_and_takes_a_while(loop: VirtualLoop) -> None:
    results: list[tuple[int, bool]] = []

    async def main() -> None:
        before = loop.time()
        results.append((await asyncio.to_thread(lambda: 7), loop.time() > before))

    start(loop, "a", main)
    loop.run_until(START_S + 1)
    assert results == [(7, True)]


def test_a_killed_process_runs_nothing_not_even_its_clean_up(
    loop: VirtualLoop, errors: Errors
) -> None:
    done: list[str] = []

    async def main() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            done.append("cleaned up")

    process = start(loop, "a", main)
    loop.run_until(START_S + 1)
    loop.kill(process)
    loop.run_until(START_S + 100)
    assert done == []
    loop.dispose([])
    assert errors == []


def test_a_resumed_process_handles_expired_timers_and_then_its_mail(
    loop: VirtualLoop,
) -> None:
    done: list[str] = []

    async def main() -> None:
        await asyncio.sleep(5)
        done.append("timer")

    process = start(loop, "a", main)
    loop.run_until(START_S + 1)
    loop.pause(process)
    loop.deliver_at(START_S + 2, process, done.append, "mail 1")
    loop.deliver_at(START_S + 3, process, done.append, "mail 2")
    loop.run_until(START_S + 20)
    assert done == []
    loop.resume(process)
    loop.deliver_at(loop.time(), process, done.append, "mail 3")
    loop.run_until(START_S + 21)
    assert done == ["timer", "mail 1", "mail 2", "mail 3"]


def test_what_a_process_starts_belongs_to_it(loop: VirtualLoop) -> None:
    done: list[str] = []

    async def child() -> None:
        await asyncio.sleep(5)
        done.append("child")

    async def main() -> None:
        loop.call_later(5, done.append, "timer")
        await asyncio.gather(child(), asyncio.to_thread(done.append, "thread"))

    first, _second = start(loop, "a", main), start(loop, "b", main)
    loop.run_until(START_S + 1)
    loop.kill(first)
    done.clear()
    loop.run_until(START_S + 10)
    assert sorted(done) == ["child", "timer"]


def test_an_uncaught_exception_is_reported(loop: VirtualLoop, errors: Errors) -> None:
    async def main() -> None:
        loop.call_soon(lambda: 1 / 0)

    start(loop, "a", main)
    loop.run_until(START_S + 1)
    assert errors == ["a: ZeroDivisionError('division by zero')"]


def test_a_loop_without_end_is_found(loop: VirtualLoop) -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    start(loop, "a", main)
    with pytest.raises(AssertionError, match="endless loop"):
        loop.run_until(START_S + 1)
