"""Renders a job's last checkpoints, for `firesteel show --checkpoints`."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from firesteel.client.job_details import CheckpointDetails, JobDetails, SubtaskCheckpoint
from firesteel.client.render.tables import clock, new_table, state_text_of
from firesteel.common.units import size

_AMOUNTS = ("Size", "Start delay", "Alignment", "Sync", "Async")


def checkpoints(details: JobDetails, *, full: bool = False) -> Iterator[RenderableType]:
    """Yields the newest checkpoint first; with `full`, including each task's part."""
    yield Text.assemble("Checkpoints of ", (details.name, "bold"), f" ({details.job_id})")
    found = details.checkpoints
    if not found:
        yield "None: the job takes no checkpoints, or has not started one."
        return
    columns = ("Triggered", "Tasks", "Duration", *_AMOUNTS)
    table = new_table("Id", "Kind", "State", *columns, right=("Id", *columns[1:]))
    for checkpoint in found:
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
    for checkpoint in found:
        if checkpoint.failure:
            yield Text(f"{checkpoint.checkpoint_id} failed: {checkpoint.failure}", style="red")
    if full:
        for checkpoint in found:
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
