"""Who was replaced, and does not know it yet, is refused by epoch wherever it would act (spec 003,
"High Availability"; invariant 20). Each refusal is counted, and of each sender the first is logged.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

import structlog

from firesteel.common.metrics import Sample

log = structlog.get_logger(__name__)

_TOLD_MAX = 1_000


class Refusals:
    """Those of one process. `by_sender` says how many of each kind of master."""

    def __init__(self) -> None:
        self.by_sender: Counter[str] = Counter()
        self._told: deque[tuple[str, int, str]] = deque(maxlen=_TOLD_MAX)

    def refuse(
        self, what: str, *, sender: str, epoch: int, in_force: int, job_id: str = ""
    ) -> None:
        """`sender`: "Dispatcher", "ResourceManager" or "JobMaster", with `epoch`; `in_force`: the
        epoch of who has replaced it, or 0 if only that it was replaced is known.
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
