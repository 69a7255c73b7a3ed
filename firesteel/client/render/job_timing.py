"""Renders the durations of the parts of a finished job."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from firesteel.client.job_details import JobDetails
from firesteel.client.render.tables import (
    new_table,
    vertex_names,
)
from firesteel.common.units import count, duration


def timing(
    details: JobDetails, *, parts_s: Mapping[str, float], duration_s: float
) -> RenderableType:
    """`parts_s` has seconds by part of the job; `duration_s` is from its submission to its end."""
    parts = new_table("Where the time went", "", right=("",))
    for name, seconds in parts_s.items():
        parts.add_row(f"  {name}", duration(max(0.0, seconds)))
    parts.add_row("  from submission to the end", duration(duration_s))
    columns = ("Records in", "Records out", "Spark", "Python", "Exchange", "Idle", "Blocked")
    vertices = new_table("Vertex", *columns, right=columns)
    for number, vertex in enumerate(details.vertices, 1):
        m = vertex.metrics
        vertices.add_row(
            f"[{number}]",
            count(m.records_in) if m.records_in else "-",
            count(m.records_out) if m.records_out else "-",
            *(
                duration(ms / 1000)
                for ms in (m.spark_ms, m.python_ms, m.exchange_ms, m.idle_ms, m.back_pressured_ms)
            ),
        )
    legend = Text(
        "Times are sums over a vertex's tasks; blocked: waiting for its consumers.",
        style="dim",
    )
    return Group("", parts, "", vertex_names(details.vertices), vertices, legend)
