"""splits: those that a program listed when it was submitted: {"splits": [{...}, ...]}.

For sources of the program's own, of which the JobMaster runs no code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from jobmaster.core.coordinators.base import BadOptions, Json, Options
from jobmaster.core.coordinators.splits import SplitEnumerator


class ListedSplitsEnumerator(SplitEnumerator):
    def __init__(self, splits: Sequence[Json]) -> None:
        super().__init__()
        self._splits = splits

    @classmethod
    def from_options(cls, options: Options) -> ListedSplitsEnumerator:
        splits = options.get("splits")
        if not isinstance(splits, list) or not all(isinstance(split, dict) for split in splits):
            raise BadOptions('"splits" must be a list of objects')
        return cls(splits)

    def split_count(self) -> int:
        return len(self._splits)

    def split_json(self, number: int) -> str:
        return json.dumps(self._splits[number])
