"""Progress of the benchmarks: the current one, its running time, and the number left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Steps:
    """A live line on a terminal; a line for each step elsewhere."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total, self._begun = total, 0
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._live = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._all = self._live.add_task("all", total=None)
        self._now = self._live.add_task("", total=None)

    def __enter__(self) -> Steps:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def extend(self) -> None:
        """Adds a step that was not planned."""
        self._total += 1

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        self._begun += 1
        number = f"{self._begun} of {self._total}"
        self._live.update(self._all, description=f"[dim]{number}, all[/]")
        self._live.reset(self._now, description=what)
        if not self._console.is_terminal:
            self._console.print(f"{number}: {what} ...")
        try:
            yield
        finally:
            self._console.print(
                f"[dim]{number}: {what}: {time.monotonic() - began:.1f} s[/]", highlight=False
            )
