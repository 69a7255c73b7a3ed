"""Virtual time: one queue of things to happen, one source of randomness, one story of what
happened.

Everything in a simulation follows from its seed. Nothing here sleeps, and nothing reads a clock.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable

from firesteel.common.ids import IdSource

START_S = 1000.0
STORY_LENGTH = 40_000  # lines kept
STORY_SHOWN = 120  # lines of a failure's message
STEPS_MAX = 2_000_000  # a simulation that does more than this is running in circles


class SimulationFailed(AssertionError):
    """Something that must hold did not; the message gives the seed, and the end of the story."""


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now = START_S
        self.steps = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._story: deque[tuple[float, str, object]] = deque(maxlen=STORY_LENGTH)

    def ids(self) -> IdSource:
        """A source of ids for one process, drawn from this world's randomness."""
        return IdSource(self.random.randbytes(16))

    def between(self, least: float, most: float) -> float:
        return self.random.uniform(least, most)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay_s, next(self._order), action))

    def run_until(self, end: float) -> None:
        while self._queue and self._queue[0][0] <= end:
            self.now, _, action = heapq.heappop(self._queue)
            self.steps += 1
            if self.steps > STEPS_MAX:
                raise self.failed(f"{STEPS_MAX} steps and no end")
            action()
        self.now = end

    def note(self, who: str, what: object) -> None:
        """Written out only when the story is told."""
        self._story.append((self.now - START_S, who, what))

    def story(self, about: str = "") -> str:
        """The last lines that mention `about`."""
        lines = (
            f"{at:9.3f} {who}: {' '.join(str(what).split())[:400]}" for at, who, what in self._story
        )
        return "\n".join([line for line in lines if about in line][-STORY_SHOWN:])

    def failed(self, why: str) -> SimulationFailed:
        replay = f"FIRESTEEL_SEED={self.seed} pytest tests/simulation"
        return SimulationFailed(
            f"{why}\nat {self.now - START_S:.3f} s of seed {self.seed}; replay: {replay}\n{self.story()}"
        )
