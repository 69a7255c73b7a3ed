"""Renders the changes of a job's parallelism, and the measurements of the autoscaler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from firesteel.client.render.tables import clock, new_table
from firesteel.common.rescales import Assessment, Rescale
from firesteel.common.units import count, duration


def rescales(found: Sequence[Rescale], names: Mapping[str, str]) -> Table:
    """`names` are those of the vertices."""
    columns = ("Time", "Rescale", "Result", "Duration", "Reason")
    table = new_table(*columns, right=("Duration",), gives_way=("Rescale", "Reason"))
    for each in found:
        changes = (f"{names.get(v, v)}: {a} -> {b}" for v, (a, b) in each.changes.items())
        table.add_row(
            clock(each.start_ms),
            Text("\n".join(changes) or "new bounds"),
            each.outcome.terminal_state or each.stages[-1].name,
            duration((each.end_ms - each.start_ms) / 1000) if each.end_ms else "-",
            Text(each.problem or each.reason or each.trigger.name),
        )
    return table


def assessments(found: Sequence[Assessment]) -> Iterator[RenderableType]:
    numbers = ("Subtasks", "Busy", "Processed/s", "Possible/s", "Arriving/s", "Backlog")
    table = new_table("Vertex", *numbers, "Needed", right=numbers, gives_way=("Vertex",))
    for each in found:
        table.add_row(
            Text(each.name),
            str(each.parallelism),
            f"{each.busy:.0%}" if each.measured_s else "-",
            count(each.rate) if each.measured_s else "-",
            count(each.capacity) if each.capacity else "-",
            count(each.demand) if each.measured_s else "-",
            "-" if each.backlog is None else count(each.backlog),
            str(each.target or "-"),
        )
    yield table
    for each in found:
        change = (
            f"{each.parallelism} -> {each.decided}"
            if each.decided not in (0, each.parallelism)
            else f"stays at {each.parallelism}"
        )
        yield Text(f"{each.name}: {change}{f' ({each.note})' if each.note else ''}")
