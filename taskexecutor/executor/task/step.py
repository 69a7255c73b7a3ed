"""The operations that differ between tasks with and without inputs."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from firesteel.elements import CheckpointBarrier


class Step(Enum):
    """The outcome of one iteration of the task's loop."""

    MORE = 0  # an element was processed; take the next step immediately
    DRY = 1  # nothing to do until a mail or new input
    END = 2  # there is no more input
    BLOCKED = 3  # no credit: nothing to do until a mail or new credit
    FULL = 4  # an operator holds its maximum of rows: nothing to do until a mail


class TaskKind(Protocol):
    """The behavior of a task with or without inputs. Called on the task's thread."""

    def init(self) -> None:
        """Acquires task-wide resources."""

    def when_initialized(self, action: Callable[[], None]) -> None:
        """Calls `action` once no operator is reading its initial state: now, or after a step. Until
        then the task takes part in no checkpoint.
        """

    def step(self) -> Step:
        """Processes the next element."""

    def step_after_data(self) -> Step:
        """Returns END once nothing can follow on the inputs."""

    def trigger_checkpoint(self, barrier: CheckpointBarrier, splits: int, *, stops: bool) -> None:
        """Handles the JobMaster's trigger: no running producer will send the barrier. A source
        waits until it has received `splits` splits. If `stops`, it produces nothing afterwards,
        unless the checkpoint is aborted.
        """

    def drain(self) -> None:
        """Ends a source as if it had reached its end."""

    def stop(self) -> None:
        """Ends the data here: the checkpoint after which nothing was produced is complete."""

    def abort_checkpoint(self, checkpoint_id: int) -> None:
        """Stops waiting for the barriers of a checkpoint that was aborted."""

    @property
    def open_checkpoints(self) -> list[int]:
        """Returns the checkpoints that were triggered here and have not started."""

    @property
    def stops_with(self) -> int | None:
        """Returns the savepoint after which nothing is produced, until its outcome is known."""

    @property
    def drained(self) -> bool:
        """Returns whether the data has really ended, rather than stopped with a savepoint."""

    @property
    def max_wait_s(self) -> float | None:
        """Returns how long to wait for a mail after a step that found nothing; None for no
        limit.
        """

    def watermark_us(self) -> int: ...

    def cleanup(self) -> None:
        """Frees what `init` acquired. Also called if `init` was not."""
