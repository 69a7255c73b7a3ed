"""A source's side of the conversation with its split enumerator in the JobMaster."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from firesteel.common.operator_messages import (
    Resend,
    SplitAssigned,
    SplitRequested,
    SplitsExhausted,
)
from firesteel.errors import FiresteelError
from firesteel.operator import RuntimeContext


class Splits:
    """The splits a source was assigned and has not begun yet.

    One is asked for at a time. Messages may be lost or doubled when the JobMaster is away for a
    moment: it then asks for what is not answered, and the number of a split tells whether it is
    here already.
    """

    def __init__(self) -> None:
        self.waiting: deque[dict[str, Any]] = deque()
        self.exhausted = False  # there will be no more
        self._received = 0
        self._requested = False

    def ask(self, context: RuntimeContext) -> None:
        """For one more, unless that is asked already."""
        if not self._requested and not self.exhausted:
            self._requested = True
            context.send_to_coordinator(SplitRequested(received=self._received))

    def handle(self, event: Any, context: RuntimeContext) -> None:
        match event:
            case SplitAssigned():
                if event.number == self._received:
                    self._received += 1
                    self._requested = False
                    self.waiting.append(json.loads(event.split_json))
            case SplitsExhausted():
                self._requested, self.exhausted = False, True
            case Resend():
                if self._requested:
                    self._requested = False
                    self.ask(context)
            case _:
                raise FiresteelError(
                    f"{context.operator_name}: unexpected event {type(event).__name__} from its coordinator"
                )
