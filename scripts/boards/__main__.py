"""Writes the boards of deploy/grafana/dashboards: `make reference`.

    python -m scripts.boards

`tests/unit/test_boards.py` fails when a board is out of date.
"""

from __future__ import annotations

from scripts.boards.grafana import FOLDER, boards

for name, content in boards().items():
    (FOLDER / name).write_text(content)
