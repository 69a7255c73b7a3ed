"""The error about rows without event time in a window."""

from __future__ import annotations

from firesteel.errors import FiresteelError


class MissingTime(FiresteelError):
    """Rows that a window would get have no event time."""

    def __init__(self, column: str, *, operator: str = "") -> None:
        super().__init__(
            f"{f'{operator}: ' if operator else ''}event time column '{column}' is null in some"
            " rows; drop them or give them a time before the window."
            " Rows of CSV and JSON files that do not fit the schema have nulls unless"
            ' FileSource(malformed="drop"), "side_output" or "fail" says otherwise'
        )
