"""Renders a job's last checkpoints, for `firesteel show --checkpoints`, and a savepoint's states,
for `firesteel savepoint --show`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from firesteel.client.job_details import CheckpointDetails, JobDetails, SubtaskCheckpoint
from firesteel.client.render.tables import clock, new_table, state_text_of
from firesteel.common.units import size

if TYPE_CHECKING:
    from firesteel.savepoint import SavedState, Savepoint

_AMOUNTS = ("Size", "Start delay", "Alignment", "Sync", "Async")


def checkpoints(details: JobDetails, *, full: bool = False) -> Iterator[RenderableType]:
    """Yields the newest checkpoint first; with `full`, including each task's part."""
    yield Text.assemble("Checkpoints of ", (details.name, "bold"), f" ({details.job_id})")
    recent = details.checkpoints
    if not recent:
        yield "None: the job takes no checkpoints, or has not started one."
        return
    columns = ("Triggered", "Tasks", "Duration", *_AMOUNTS)
    table = new_table("Id", "Kind", "State", *columns, right=("Id", *columns[1:]))
    for checkpoint in recent:
        table.add_row(
            str(checkpoint.checkpoint_id),
            "savepoint" if checkpoint.savepoint else "checkpoint",
            state_text_of(checkpoint.state),
            clock(checkpoint.triggered_ms),
            f"{checkpoint.acknowledged}/{checkpoint.tasks}",
            _ms(checkpoint.duration_ms),
            size(checkpoint.size_bytes),
            *map(_ms, _times(checkpoint)),
        )
    yield table
    for checkpoint in recent:
        if checkpoint.failure:
            yield Text(f"{checkpoint.checkpoint_id} failed: {checkpoint.failure}", style="red")
    if full:
        for checkpoint in recent:
            if checkpoint.subtasks:
                yield ""
                yield Text(str(checkpoint.checkpoint_id), style="bold")
                yield Padding(_subtasks(checkpoint), (0, 0, 0, 2), expand=False)


def _subtasks(checkpoint: CheckpointDetails) -> RenderableType:
    table = new_table("Task", *_AMOUNTS, right=_AMOUNTS)
    for part in checkpoint.subtasks:
        table.add_row(part.task, size(part.size_bytes), *map(_ms, _times(part)))
    return table


def _times(of: CheckpointDetails | SubtaskCheckpoint) -> tuple[float, ...]:
    return of.start_delay_ms, of.alignment_ms, of.sync_ms, of.async_ms


def _ms(ms: float) -> str:
    return f"{ms:,.0f} ms" if ms >= 10 else f"{ms:.1f} ms"


def savepoint(saved: Savepoint, *, full: bool = False) -> Iterator[RenderableType]:
    """With `full`, includes amounts that require reading the states."""
    yield Text.assemble(
        f"{saved.kind.capitalize()} {saved.checkpoint_id} of ",
        (saved.job_name, "bold"),
        f" ({saved.job_id}), taken {clock(int(saved.taken.timestamp() * 1000))}",
    )
    columns = ("Rows", "In memory") if full else ()
    right = ("Size", "Parallelism", "Max", *columns)
    table = new_table(
        "Operator", "Uid", "Size", "Parallelism", "Max", "State", "Kind", *columns, right=right
    )
    for operator in saved.values():
        about: tuple[str, ...] = (
            operator.name,
            operator.uid or "-",
            size(operator.size_bytes),
            str(operator.parallelism),
            str(operator.max_parallelism),
        )
        for name, state in operator.items() or (("-", None),):
            kind = "-" if state is None else state.kind
            table.add_row(*about, name, kind, *(_read(state) if full else ()))
            about = ("",) * len(about)
    yield table


def _read(state: SavedState | None) -> tuple[str, str]:
    if state is None:
        return "-", "-"
    rows = state.to_arrow()
    return f"{rows.num_rows:,}", size(rows.nbytes)
