"""Split enumerators: each split is owned by exactly one live attempt (invariant 17)."""

from __future__ import annotations

import hashlib
import heapq
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from firesteel.common.ids import AttemptId
from firesteel.common.operator_messages import (
    HeldSplit,
    NoSplitYet,
    OperatorMessage,
    SplitAssigned,
    SplitRequested,
    SplitsExhausted,
)
from jobmaster.core.coordinators.base import (
    Answer,
    BadOptions,
    Coordinator,
    Json,
    Options,
    Spool,
    UnexpectedMessage,
)

LAST = 2**63 - 1  # of a sequence


class SplitEnumerator(Coordinator, ABC):
    """Assigns splits one by one. They are numbered from 0; a subclass knows how many there are and
    describes each one.

    A request contains the number of splits that its attempt has received. So a repeated request,
    whose answer may be lost, is answered with the split that was assigned before.

    An unbounded source may have more splits later: a reader that requests one when there is none
    learns so, and gets a split as soon as there is one.

    An attempt that ends without finishing returns all splits it was assigned: without a checkpoint,
    its progress is lost. They are assigned again first, in order.

    A subtask that has finished and starts over, because its output is lost, gets exactly the splits
    that it had: some of its consumers have read the rows of these, and will not read them again.
    """

    def __init__(self) -> None:
        self._next = 0  # the first split that was never assigned
        self._returned: list[int] = []  # heap of returned splits
        self._owned: dict[AttemptId, list[int]] = {}
        # Unanswered readers, in the order of their requests.
        self._waiting: dict[AttemptId, None] = {}
        # The splits of subtasks that had finished and start over; and the attempts that read them.
        self._repeated: dict[int, list[int]] = {}
        self._repeating: set[AttemptId] = set()
        self._found_version = 0

    @abstractmethod
    def split_count(self) -> int: ...

    @abstractmethod
    def split_json(self, number: int) -> str: ...

    @property
    def up_to_date(self) -> bool:
        """Whether the splits include those that were available when the readers started."""
        return True

    @property
    def bounded(self) -> bool:
        """Whether `split_count` is final."""
        return True

    def receive(
        self, attempt_id: AttemptId, subtask: int, message: OperatorMessage
    ) -> Sequence[OperatorMessage | Spool]:
        if not isinstance(message, SplitRequested):
            raise UnexpectedMessage(
                f"a source sent {type(message).__name__} to its split enumerator"
            )
        owned = self._owned.setdefault(attempt_id, [])
        if message.received > len(owned):
            raise UnexpectedMessage(
                f"a source claims to have had {message.received} splits; "
                f"it was assigned {len(owned)}"
            )
        if message.received < len(owned):
            return (self._assigned(message.received, owned[message.received]),)
        repeated = self._repeated.get(subtask)
        if repeated is not None:
            self._repeating.add(attempt_id)
            if len(owned) == len(repeated):
                return (SplitsExhausted(),)
            return (self._assign(attempt_id, repeated[len(owned)]),)
        number = self._take()
        if number is not None:
            return (self._assign(attempt_id, number),)
        if self.bounded:
            return (SplitsExhausted(),)
        self._waiting[attempt_id] = None
        return (NoSplitYet(),) if self.up_to_date else ()

    def serve_waiting(self) -> Sequence[Answer]:
        """Answers waiting readers when there may be more splits."""
        served: list[Answer] = []
        while self._waiting and (number := self._take()) is not None:
            attempt_id = next(iter(self._waiting))
            served.append(Answer(attempt_id, self._assign(attempt_id, number)))
        return served

    def _take(self) -> int | None:
        """Takes the next split without an owner."""
        if self._returned:
            return heapq.heappop(self._returned)
        if self._next >= self.split_count():
            return None
        self._next += 1
        return self._next - 1

    def _assign(self, attempt_id: AttemptId, number: int) -> SplitAssigned:
        owned = self._owned.setdefault(attempt_id, [])
        owned.append(number)
        self._waiting.pop(attempt_id, None)
        return self._assigned(len(owned) - 1, number)

    def _assigned(self, of_attempt: int, number: int) -> SplitAssigned:
        return SplitAssigned(number=of_attempt, split_json=self.split_json(number), place=number)

    def assigned(self, attempt_id: AttemptId) -> int:
        return len(self._owned.get(attempt_id, ()))

    def assigned_to_all(self) -> int:
        return sum(map(len, self._owned.values()))

    @property
    def found_version(self) -> int:
        return self._found_version

    def found(self, snapshot: Json) -> Json:
        """Returns the splits that must be repeated."""
        return {"repeated": list(self._repeated.items())} if self._repeated else None

    def take_found(self, found: Json) -> None:
        for subtask, places in found.get("repeated", ()):
            self._repeated[subtask] = places
            self._taken(places)

    def adopt(self, attempt_id: AttemptId, subtask: int, held: Sequence[HeldSplit]) -> str:
        """Takes over the attempt. A split assigned since the snapshot that never arrived has no
        owner.
        """
        for split in held:
            place, count = split.place, self.split_count()
            if place >= count or split != HeldSplit.of(place, self.split_json(place)):
                return f"it has a split {place} that is not stored among those of its source"
        return self.adopt_finished(attempt_id, subtask, [split.place for split in held])

    def adopt_finished(self, attempt_id: AttemptId, subtask: int, places: Sequence[int]) -> str:
        if any(place >= self.split_count() for place in places):
            return "it has read splits that are not stored among those of its source"
        if (repeated := self._repeated.get(subtask)) is not None:
            if list(places) != repeated[: len(places)]:
                return "it has different splits from those that it must read again"
            self._repeating.add(attempt_id)
        self._taken(places)
        self._owned[attempt_id] = list(places)
        return ""

    def backlog(self) -> Mapping[str, int]:
        new = max(0, self.split_count() - self._next)
        return {"unassignedSplits": new + len(self._returned)}

    def owned(self, attempt_id: AttemptId) -> Sequence[int] | None:
        return self._owned.get(attempt_id)

    def reads_anew(self, subtask: int) -> bool:
        return subtask not in self._repeated

    def _taken(self, places: Sequence[int]) -> None:
        for place in places:
            if place in self._returned:
                self._returned.remove(place)
            elif place >= self._next:
                self._returned.extend(range(self._next, place))
                self._next = place + 1
        heapq.heapify(self._returned)

    def attempt_ended(self, attempt_id: AttemptId) -> None:
        self._waiting.pop(attempt_id, None)
        owned = self._owned.pop(attempt_id, ())
        for number in () if attempt_id in self._repeating else owned:
            heapq.heappush(self._returned, number)

    def subtask_starts_over(self, attempt_id: AttemptId, subtask: int, *, finished: bool) -> None:
        if finished and attempt_id in self._owned:
            self._repeated.setdefault(subtask, self._owned.pop(attempt_id))
            self._found_version += 1
        self.attempt_ended(attempt_id)

    def start_over(self) -> None:
        self._repeated.clear()
        self._repeating.clear()
        self._next = 0
        self._returned.clear()
        self._owned.clear()
        self._waiting.clear()

    def snapshot(self) -> Json:
        """Returns the splits without an owner; the readers' snapshots contain the assigned ones."""
        return {"next": self._next, "returned": sorted(self._returned)}

    def restore(self, snapshot: Json) -> None:
        super().restore(snapshot)
        self._next, self._returned = snapshot["next"], list(snapshot["returned"])


class ListedSplitsEnumerator(SplitEnumerator):
    """splits: splits that a program listed when it was submitted: {"splits": [{...}, ...]}.

    With "one_each", no subtask is assigned a second split, which it would request early: the first
    may never end, while other subtasks have none.

    It serves custom sources, whose code does not run in the JobMaster.
    """

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


class SequenceSourceEnumerator(SplitEnumerator):
    """sequence-source: ranges of numbers in order: {"start": 0, "end": 1000000}. The end is
    exclusive; null means that the sequence never ends. Splits are computed on request, so that a
    sequence of any length needs no memory.
    """

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

    def backlog(self) -> Mapping[str, int]:
        if self._end == LAST:
            return {}
        new = max(0, self._end - self._start - self._next * self._split_rows)
        returned = sum(self._rows(number) for number in list(self._returned))
        return {**super().backlog(), "pendingRecords": new + returned}

    def _rows(self, number: int) -> int:
        start = self._start + number * self._split_rows
        return min(self._end, start + self._split_rows) - start

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
