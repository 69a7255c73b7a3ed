"""splits: splits that a program listed when it was submitted: {"splits": [{...}, ...]}.

With "one_each", no subtask is assigned a second split, which it would request early: the first may
never end, while other subtasks have none.

It serves custom sources, whose code does not run in the JobMaster.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from firesteel.common.ids import AttemptId
from firesteel.common.operator_messages import OperatorMessage, SplitRequested, SplitsExhausted
from jobmaster.core.coordinators.base import BadOptions, Json, Options, Spool
from jobmaster.core.coordinators.splits import SplitEnumerator


class ListedSplitsEnumerator(SplitEnumerator):
    def __init__(self, splits: Sequence[Json], *, one_each: bool = False) -> None:
        super().__init__()
        self._splits = splits
        self._one_each = one_each
        self._digest = hashlib.sha256(json.dumps(splits, sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_options(cls, options: Options) -> ListedSplitsEnumerator:
        splits = options.get("splits")
        if not isinstance(splits, list) or not all(isinstance(split, dict) for split in splits):
            raise BadOptions('"splits" must be a list of objects')
        return cls(splits, one_each=options.get("one_each") is True)

    def receive(
        self, attempt_id: AttemptId, subtask: int, message: OperatorMessage
    ) -> Sequence[OperatorMessage | Spool]:
        if self._one_each and message == SplitRequested(received=1):
            return (SplitsExhausted(),)
        return super().receive(attempt_id, subtask, message)

    def split_count(self) -> int:
        return len(self._splits)

    def split_json(self, number: int) -> str:
        return json.dumps(self._splits[number])

    def snapshot(self) -> Json:
        return {**super().snapshot(), "listed": self._digest}

    def mismatch(self, snapshot: Json) -> str:
        if snapshot["listed"] == self._digest:
            return ""
        return "its splits(parallelism) returns different splits than those that were partly read"
