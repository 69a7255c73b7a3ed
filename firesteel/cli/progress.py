"""A running job on the terminal: a table that moves, or, where there is no terminal, a line at every change."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Protocol

import click
from rich.console import Console
from rich.live import Live

from firesteel.cli import render
from firesteel.job_details import JobDetails

COUNTS_EVERY_S = 10.0  # plain: record counts of a job in which nothing else changes


class Display(Protocol):
    interrupted: bool  # Ctrl-C was pressed

    def begin(self) -> None:
        """A job was submitted."""

    def update(self, details: JobDetails) -> None: ...

    def cancelling(self, job_id: str) -> None: ...

    def __enter__(self) -> Any: ...

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None: ...


def progress_display() -> Display:
    console = render.console()
    return LiveDisplay(console) if console.is_terminal else PlainDisplay()


class LiveDisplay:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self.interrupted = False

    def begin(self) -> None:
        self._end()
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._live.start()

    def update(self, details: JobDetails) -> None:
        if self._live is not None:
            self._live.update(render.progress(details, cancelling=self.interrupted), refresh=True)
        if details.status.globally_terminal:
            self._end()

    def cancelling(self, job_id: str) -> None:
        self.interrupted = True

    def _end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> LiveDisplay:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self._end()


class PlainDisplay:
    def __init__(self) -> None:
        self.interrupted = False
        self._shown: dict[str, str] = {}
        self._counts_at = 0.0

    def begin(self) -> None:
        self._shown.clear()
        self._counts_at = time.monotonic() + COUNTS_EVERY_S

    def update(self, details: JobDetails) -> None:
        status = f"job {details.status.name}"
        if details.waiting_for:
            # Its duration moves all the time: what it waits for is the news.
            self._line("waiting", details.waiting_for.split(" (")[0], f"{status}, waiting for {details.waiting_for}")
        else:
            self._line("job", status, status)
        for vertex in details.vertices:
            states = render.states_text(vertex.states)
            if states:
                self._line(vertex.vertex_id, states, f"{vertex.name}: {states}{_counts(vertex)}")
        if time.monotonic() >= self._counts_at and not details.status.globally_terminal:
            self._counts_at = time.monotonic() + COUNTS_EVERY_S
            if details.waiting_for:
                self._say(f"{status}, waiting for {details.waiting_for}")
            for vertex in details.vertices:
                if counts := _counts(vertex):
                    self._say(f"{vertex.name}:{counts}")

    def _line(self, key: str, news: str, line: str) -> None:
        if self._shown.get(key) != news:
            self._shown[key] = news
            self._say(line)

    def _say(self, line: str) -> None:
        click.echo(f"{time.strftime('%H:%M:%S')} {line}")

    def cancelling(self, job_id: str) -> None:
        self.interrupted = True
        click.echo(f"Cancelling job {job_id}; press Ctrl-C again to leave without waiting.", err=True)

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        pass


def _counts(vertex: Any) -> str:
    metrics = vertex.metrics
    counts = [f"{n:,} records {word}" for n, word in ((metrics.records_in, "in"), (metrics.records_out, "out")) if n]
    return f" ({', '.join(counts)})" if counts else ""
