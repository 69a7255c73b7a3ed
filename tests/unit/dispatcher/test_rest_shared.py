"""Values that callers share: loaded once, then fresh, stale and gone."""

from __future__ import annotations

import asyncio

import pytest

from dispatcher.rest.shared import Shared


class Source:
    def __init__(self) -> None:
        self.loads: list[asyncio.Future[str]] = []
        self.now_s = 0.0
        self.shared = Shared(now_s=lambda: self.now_s)

    async def _load(self) -> str:
        self.loads.append(asyncio.get_running_loop().create_future())
        return await self.loads[-1]

    def get(self, key: str = "k") -> asyncio.Task[str]:
        return asyncio.ensure_future(self.shared.get(key, self._load, 1.0))

    async def settled(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def test_callers_at_the_same_time_share_one_load():
    source = Source()
    callers = [source.get() for _ in range(3)]
    await source.settled()
    assert len(source.loads) == 1
    source.loads[0].set_result("a")
    assert await asyncio.gather(*callers) == ["a"] * 3
    assert await source.get() == "a"
    assert len(source.loads) == 1


async def test_a_stale_value_is_returned_while_the_next_one_loads():
    source = Source()
    first = source.get()
    await source.settled()
    source.loads[0].set_result("a")
    assert await first == "a"
    source.now_s = 1.5
    assert [await source.get(), await source.get()] == ["a", "a"]
    assert len(source.loads) == 2
    source.loads[1].set_result("b")
    await source.settled()
    assert await source.get() == "b"
    source.now_s = 9.0
    waiting = source.get()
    await source.settled()
    assert not waiting.done()
    source.loads[2].set_result("c")
    assert await waiting == "c"


async def test_failures_are_not_kept():
    source = Source()
    first = source.get()
    await source.settled()
    source.loads[0].set_exception(ValueError("x"))
    with pytest.raises(ValueError, match="x"):
        await first
    second = source.get()
    await source.settled()
    source.loads[1].set_result("a")
    assert await second == "a"
    source.now_s = 1.5
    assert await source.get() == "a"
    source.loads[2].set_exception(ValueError("y"))
    await source.settled()
    assert await source.get() == "a"
    assert len(source.loads) == 4
    source.loads[3].set_result("b")
    await source.settled()


async def test_a_caller_that_leaves_does_not_end_the_load_of_others():
    source = Source()
    leaving, staying = source.get(), source.get()
    await source.settled()
    leaving.cancel()
    await source.settled()
    source.loads[0].set_result("a")
    assert await staying == "a"


async def test_what_is_forgotten_is_loaded_again():
    source = Source()
    first = source.get()
    await source.settled()
    source.loads[0].set_result("a")
    await first
    source.shared.forget()
    again = source.get()
    await source.settled()
    source.loads[1].set_result("b")
    assert await again == "b"
