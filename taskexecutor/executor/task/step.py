"""What tasks with and without inputs do differently."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from firesteel.elements import CheckpointBarrier


class Step(Enum):
    """The outcome of one turn of the task's loop."""

    MORE = 0  # something was processed; take the next step at once
    DRY = 1  # nothing to do until a mail or new input
    END = 2  # nothing more will come
    BLOCKED = 3  # the consumers have taken too little: nothing to do until a mail or their credit
    FULL = 4  # an operator holds as many rows as it may: nothing to do until a mail


class TaskKind(Protocol):
    """Called on the task's thread."""

    def init(self) -> None:
        """Acquires task-wide resources."""

    def when_initialized(self, action: Callable[[], None]) -> None:
        """Calls `action` once no operator reads its initial state any more: now, or after a step.
        Until then the task takes part in no checkpoint.
        """

    def step(self) -> Step:
        """Processes the next element."""

    def step_after_data(self) -> Step:
        """END when nothing at all can follow on the inputs."""

    def trigger_checkpoint(self, barrier: CheckpointBarrier, splits: int, *, stops: bool) -> None:
        """The master's trigger: no running producer will bring the barrier. A source waits until it
        has received so many splits. `stops`: it produces nothing after it, unless it is given up.
        """

    def drain(self) -> None:
        """A source ends, as if it had nothing more to read."""

    def stop(self) -> None:
        """The checkpoint after which nothing was produced is complete: the data ends here."""

    def abort_checkpoint(self, checkpoint_id: int) -> None:
        """The checkpoint was given up: its barriers need not be waited for."""

    @property
    def open_checkpoints(self) -> list[int]:
        """Those that were triggered here and have not begun."""

    @property
    def stops_with(self) -> int | None:
        """The savepoint after which nothing is produced, until its end is known."""

    @property
    def drained(self) -> bool:
        """Whether the data has really ended, rather than stopped with a savepoint."""

    @property
    def max_wait_s(self) -> float | None:
        """How long to wait for a mail after a step that found nothing; None: without a limit."""

    def watermark_us(self) -> int: ...

    def cleanup(self) -> None:
        """Frees what `init` acquired; also if `init` was never called."""
