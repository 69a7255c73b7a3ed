"""A source's side of the protocol with its split enumerator in the JobMaster."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from firesteel.common.operator_messages import (
    HeldSplit,
    NoSplitYet,
    Resend,
    SplitAssigned,
    SplitRequested,
    SplitsExhausted,
)
from firesteel.connectors.source import Split
from firesteel.errors import FiresteelError
from firesteel.operator import RuntimeContext

VERSION = 1  # of positions


class Begun(NamedTuple):
    """A split, and the position in it, which only its source understands; None: nothing has been
    emitted.
    """

    split: Split
    at: Any
    place: int = 0  # in the order in which the source's splits are assigned


def check_version(position: dict[str, Any], context: RuntimeContext) -> None:
    """Raises FiresteelError for an unknown version."""
    if position.get("version") != VERSION:
        raise FiresteelError(
            f"{context.operator_name}: a position of version {position.get('version')!r} "
            f"cannot be restored, only one of version {VERSION}"
        )


def merged(positions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns one position for the splits of several subtasks. They are read in the order of
    assignment, as a single subtask would: so none is late.
    """
    splits = [Begun(*split) for position in positions for split in position["splits"]]
    return {**positions[0], "splits": sorted(splits, key=lambda begun: begun.place)}


class Splits:
    """The splits that a source was assigned and has not started.

    One split is requested at a time. While the JobMaster is unavailable, messages may be lost or
    arrive twice: it requests unanswered messages again, and a split's number shows whether it has
    arrived already.
    """

    def __init__(self) -> None:
        self.waiting: deque[Begun] = deque()
        self.exhausted = False  # there will be no more splits
        self.caught_up = False  # all splits that exist so far have been assigned
        self.held: list[HeldSplit] = []  # splits that this attempt has received
        self._requested = False
        self._place = 0  # of the current split

    @property
    def received(self) -> int:
        """The number of splits that this attempt has received."""
        return len(self.held)

    def begin(self) -> Begun:
        """Returns the next waiting split."""
        begun = self.waiting.popleft()
        self._place = begun.place
        return begun

    def position(self, begun: Begun | None, **others: Any) -> dict[str, Any]:
        """Returns the position of the source. `begun` is the split that it is reading."""
        splits = list(self.waiting)
        if begun is not None:
            splits.insert(0, begun._replace(place=self._place))
        return {"version": VERSION, "splits": splits, **others}

    def restore(self, position: dict[str, Any], context: RuntimeContext) -> None:
        """Restores splits that were assigned before, to be read first."""
        check_version(position, context)
        self.waiting.extend(Begun(*split) for split in position["splits"])

    def ask(self, context: RuntimeContext) -> None:
        """Requests another split, unless a request is unanswered."""
        if not self._requested and not self.exhausted:
            self._requested = True
            context.send_to_coordinator(SplitRequested(received=self.received))

    def handle(self, event: Any, context: RuntimeContext) -> None:
        match event:
            case SplitAssigned():
                if event.number == self.received:
                    self.held.append(HeldSplit.of(event.place, event.split_json))
                    self._requested = self.caught_up = False
                    self.waiting.append(Begun(json.loads(event.split_json), None, event.place))
            case SplitsExhausted():
                self._requested, self.exhausted, self.caught_up = False, True, True
            case NoSplitYet():
                self.caught_up = True
            case Resend():
                if self._requested:
                    self._requested = False
                    self.ask(context)
            case _:
                raise FiresteelError(
                    f"{context.operator_name}: unexpected event {type(event).__name__} "
                    "from its coordinator"
                )
