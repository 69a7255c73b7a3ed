"""Renders a savepoint's states, for `firesteel savepoint --show`."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from firesteel.client.render.tables import clock, new_table
from firesteel.common.units import size
from firesteel.savepoint import SavedState, Savepoint


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
    found = state.to_arrow()
    return f"{found.num_rows:,}", size(found.nbytes)
