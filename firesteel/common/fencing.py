"""Fencing: a replaced master that still acts is refused because of its epoch (spec 003, "High
Availability"; invariant 20). Every refusal is counted, and the first one of each sender is logged.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from firesteel.common.logs import get_logger
from firesteel.common.metrics import Sample

log = get_logger(__name__)

_TOLD_MAX = 1_000


class Refusals:
    """The refusals of one process. `by_sender` counts them for each kind of master."""

    def __init__(self) -> None:
        self.by_sender: Counter[str] = Counter()
        self._told: deque[tuple[str, int, str]] = deque(maxlen=_TOLD_MAX)

    def refuse(
        self, what: str, *, sender: str, epoch: int, in_force: int, job_id: str = ""
    ) -> None:
        """Records a refusal. `sender` is "Dispatcher", "ResourceManager" or "JobMaster", with
        `epoch`. `in_force` is the epoch of its successor, or 0 if only the replacement is known.
        """
        self.by_sender[sender] += 1
        who = (sender, epoch, job_id)
        if who in self._told:
            return
        self._told.append(who)
        more: dict[str, object] = {"job_id": job_id} if job_id else {}
        if in_force:
            more["in_force"] = in_force
        log.warning(
            "refused a master that was replaced", what=what, sender=sender, epoch=epoch, **more
        )

    def samples(self, prefix: str, labels: Mapping[str, str]) -> list[Sample]:
        name = f"{prefix}numFencedMessages"
        return [
            Sample(name, {**labels, "sender": sender}, count)
            for sender, count in list(self.by_sender.items())
        ]
