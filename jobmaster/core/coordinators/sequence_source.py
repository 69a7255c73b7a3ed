"""sequence-source: ranges of numbers, in order: {"start": 0, "end": 1000000} (end is exclusive;
null: it never ends).
"""

from __future__ import annotations

import json

from jobmaster.core.coordinators.base import BadOptions, Options
from jobmaster.core.coordinators.splits import SplitEnumerator

LAST = 2**63 - 1


class SequenceSourceEnumerator(SplitEnumerator):
    """Splits are computed when asked for: a sequence of any length costs nothing."""

    def __init__(self, *, start: int, end: int | None, split_rows: int) -> None:
        super().__init__()
        self._start = start
        self._end = LAST if end is None else end  # unbounded: for ever, in practice
        self._split_rows = split_rows

    @classmethod
    def from_options(cls, options: Options) -> SequenceSourceEnumerator:
        try:
            start, split_rows = int(options["start"]), int(options["split_rows"])
            end = None if options["end"] is None else int(options["end"])
        except KeyError as error:
            raise BadOptions(f"{error} is missing") from None
        if split_rows < 1:
            raise BadOptions(f'"split_rows" is {split_rows}; it must be at least 1')
        return cls(start=start, end=end, split_rows=split_rows)

    def split_count(self) -> int:
        return max(0, -(-(self._end - self._start) // self._split_rows))

    def split_json(self, number: int) -> str:
        start = self._start + number * self._split_rows
        return json.dumps({"start": start, "end": min(self._end, start + self._split_rows)})
