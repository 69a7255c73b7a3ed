"""sequence-source: ranges of numbers in order: {"start": 0, "end": 1000000}. The end is exclusive;
null means that the sequence never ends.
"""

from __future__ import annotations

import json

from jobmaster.core.coordinators.base import BadOptions, Json, Options
from jobmaster.core.coordinators.splits import SplitEnumerator

LAST = 2**63 - 1


class SequenceSourceEnumerator(SplitEnumerator):
    """Computes splits on request, so that a sequence of any length needs no memory."""

    def __init__(self, *, start: int, end: int | None, split_rows: int) -> None:
        super().__init__()
        self._start = start
        self._end = LAST if end is None else end  # unbounded: LAST is never reached in practice
        self._own_split_rows = self._split_rows = split_rows

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

    def start_over(self) -> None:
        super().start_over()
        self._split_rows = self._own_split_rows

    def snapshot(self) -> Json:
        """Includes the sizes of splits: they are numbered, so a new rate or parallelism keeps
        them.
        """
        cut = {"start": self._start, "end": self._end, "split_rows": self._split_rows}
        return {**super().snapshot(), **cut}

    def restore(self, snapshot: Json) -> None:
        super().restore(snapshot)
        self._split_rows = snapshot["split_rows"]

    def mismatch(self, snapshot: Json) -> str:
        before, now = (snapshot["start"], snapshot["end"]), (self._start, self._end)
        return "" if before == now else f"it was {_range(before)} and is now {_range(now)}"


def _range(bounds: tuple[int, int]) -> str:
    return f"from {bounds[0]} to {'no end' if bounds[1] == LAST else bounds[1]}"
