"""The names of the columns of a query's streams.

State is stored under these names. A restarted program makes the same query with other expression
ids, so the names come from the program's names, and from the order in which the planner meets them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from firesteel.plan.catalyst_plan import without_ids

_NOT_IN_NAMES = re.compile(r"\W+")


def repeated(names: Sequence[str]) -> list[str]:
    """Returns the names that others of them equal without their case."""
    counts = Counter(name.lower() for name in names)
    return sorted({name for name in names if counts[name.lower()] > 1})


class Names:
    """Names the attributes of one query. No two names differ in their case only."""

    def __init__(self) -> None:
        self._by_id: dict[int, str] = {}
        self._given: Counter[str] = Counter()

    def column(self, attribute: Any) -> str:
        """Returns the name of an attribute: "k_1" for the first one that is named k. It ends with a
        digit: names that the planner invents end with a letter.
        """
        return self._of(attribute.exprId().id(), attribute.name())

    def time(self, attribute: Any) -> str:
        """Returns the name of a column with the event time of an attribute."""
        return f"{self.column(attribute)}_time"

    def result(self, call: Any) -> str:
        """Returns the name of the result of an aggregate function."""
        return f"{self._of(call.resultId().id(), 'result')}_result"

    def uid(self, kind: str) -> str:
        """Returns the uid of the next operator of this kind, under which its state is restored."""
        return f"{kind}-{self._count(f'operator {kind}')}"

    def _of(self, number: int, text: str) -> str:
        if number not in self._by_id:
            known = _NOT_IN_NAMES.sub("_", without_ids(text))[:40]
            self._by_id[number] = f"{known}_{self._count(known)}"
        return self._by_id[number]

    def _count(self, text: str) -> int:
        self._given[text.lower()] += 1
        return self._given[text.lower()]
