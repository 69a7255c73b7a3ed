"""Writes the reference of the public API, from its docstrings, as HTML: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

import firesteel

PAGES = (
    "firesteel",
    "firesteel.connectors",
    "firesteel.errors",
    "firesteel.functions",
    "firesteel.latest_operator",
    "firesteel.operator",
    "firesteel.row_operations",
    "firesteel.savepoint",
    "firesteel.state",
    "firesteel.testing",
)


def build(folder: Path) -> None:
    import pdoc

    for name in firesteel.__all__:  # loaded on first use, and pdoc looks at what is there
        setattr(firesteel, name, getattr(firesteel, name))
    pdoc.render.configure(
        docformat="markdown",
        show_source=False,
        footer_text=f"Firesteel {firesteel.__version__}",
    )
    pdoc.pdoc(*PAGES, output_directory=folder)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
