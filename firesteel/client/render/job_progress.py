"""Renders a running job: a row per vertex."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from firesteel.client.job_details import JobDetails, Vertex
from firesteel.client.render.tables import (
    STATE_STYLES,
    cut,
    new_table,
    state_text,
)
from firesteel.common.states import ExecutionState
from firesteel.common.units import count, duration, rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """A vertex's rates over the last few seconds, or over the whole run of an ended job."""

    records_in_per_s: float = 0.0
    records_out_per_s: float = 0.0
    busy: float = 0.0  # the fraction of its tasks' time
    idle: float = 0.0
    back_pressured: float = 0.0


def progress(
    details: JobDetails, paces: Mapping[str, Pace], *, cancelling: bool = False
) -> RenderableType:
    """`paces` has rates by vertex id, for vertices that have run long enough."""
    now_ms = details.end_ms or time.time() * 1000
    head = Text.assemble("Job ", (details.name, "bold"), "  ", state_text(details.status))
    head.append(f"  {duration(max(0.0, (now_ms - details.start_ms) / 1000))}")
    if details.waiting_for:
        head.append(f"  waiting for {details.waiting_for}", style="yellow")
    if cancelling and not details.status.globally_terminal:
        head.append("  cancelling; Ctrl-C again to leave", style="yellow")
    return Group(head, _vertices(details.vertices, paces))


def _vertices(vertices: Sequence[Vertex], paces: Mapping[str, Pace]) -> Table:
    counts = ("Records in", "", "Records out", " ")  # with their rates
    table = new_table(
        "Vertex", "Tasks", *counts, "Mostly", right=counts, gives_way=("Vertex", "Tasks")
    )
    consumed = {vertex_id for vertex in vertices for vertex_id in vertex.input_vertex_ids}
    for number, vertex in enumerate(vertices, 1):
        metrics, pace = vertex.metrics, paces.get(vertex.vertex_id, Pace())
        states = Text(", ").join(
            Text(f"{count} {state.name}", style=STATE_STYLES.get(state.name, ""))
            for state, count in _ordered(vertex.states)
        )
        table.add_row(
            cut(f"[{number}] {vertex.name}"),
            states or str(vertex.parallelism),
            *_count(
                metrics.records_in, pace.records_in_per_s, counted=bool(vertex.input_vertex_ids)
            ),
            *_count(
                metrics.records_out, pace.records_out_per_s, counted=vertex.vertex_id in consumed
            ),
            mostly(pace),
        )
    return table


def _count(records: int, per_s: float, *, counted: bool) -> tuple[str, str]:
    """Shows a dash instead of zero for a vertex without inputs or outputs."""
    if not records and not counted:
        return "-", ""
    return count(records), rate(per_s) if per_s else ""


def mostly(pace: Pace) -> str:
    """Describes where most of the time is spent: `82% busy`, `95% idle`, `60% blocked`
    (back-pressure).
    """
    share, word = max((pace.busy, "busy"), (pace.idle, "idle"), (pace.back_pressured, "blocked"))
    return f"{share:.0%} {word}" if share > 0 else ""


def _ordered(states: Counter[ExecutionState]) -> Iterator[tuple[ExecutionState, int]]:
    return ((state, states[state]) for state in ExecutionState if states[state])


def states_text(states: Mapping[ExecutionState, int]) -> str:
    """Formats states as `1 INITIALIZING, 3 RUNNING`, in the order of the states."""
    return ", ".join(
        f"{states[state]} {state.name}" for state in ExecutionState if states.get(state)
    )
