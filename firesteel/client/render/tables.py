"""Common parts of all renderings: the console, tables, states and times."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from firesteel.client.job_details import Vertex
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.common.units import counted

STATE_STYLES = {
    "RUNNING": "green",
    "FINISHED": "bold green",
    "COMPLETED": "green",
    "FAILED": "bold red",
    "FAILING": "red",
    "CANCELED": "yellow",
    "CANCELING": "yellow",
    "CANCELLING": "yellow",
}


PLAIN_WIDTH = 160  # for tables written to a file or a pipe


def console(*, stderr: bool = False) -> Console:
    made = Console(highlight=False, markup=False, stderr=stderr)  # users' names are not markup
    if made.is_terminal:
        return made
    return Console(highlight=False, markup=False, width=PLAIN_WIDTH, stderr=stderr)


def state_text(state: ExecutionState | JobStatus) -> Text:
    return state_text_of(state.name)


def state_text_of(name: str) -> Text:
    return Text(name, style=STATE_STYLES.get(name, ""))


def clock(ms: int) -> str:
    """Formats the time as ISO 8601, in the local zone."""
    return datetime.fromtimestamp(ms // 1000).astimezone().isoformat() if ms else "-"


def new_table(*columns: str, right: Iterable[str] = (), gives_way: Iterable[str] = ()) -> Table:
    """`gives_way` names the columns that shrink on a narrow terminal (see `cut`)."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in set(right) else "left",
            no_wrap=column not in set(gives_way),
            overflow="fold",
        )
    return table


def cut(text: str) -> Text:
    """Returns a text that ends in an ellipsis where it does not fit, instead of wrapping."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def vertex_names(vertices: Iterable[Vertex]) -> RenderableType:
    """Renders a legend of the numbers of vertices."""
    return Text("\n").join(
        Text(f"[{number}] {vertex.name} ({counted(vertex.parallelism, 'task')})")
        for number, vertex in enumerate(vertices, 1)
    )


def one_plan_text(operators: int) -> str:
    return f"one plan on Spark of {operators} operators"


def operator_text(name: str, kind: str, uid: str, runs_on_spark: bool) -> Text:
    text = Text(name)
    if kind and kind not in name:
        text.append(f"  {kind}", "dim")
    if runs_on_spark:
        text.append("  on Spark", style="cyan")
    if uid and uid != name:
        text.append(f"  uid {uid}", style="dim")
    return text
