"""Explains in one sentence why a job does not get its slots. The sentence contains no times,
because every change of it is sent.
"""

from __future__ import annotations

from firesteel.common.config import options
from resourcemanager.core.matching import Need
from resourcemanager.core.slots import SlotState, SlotTable
from resourcemanager.core.workers import Growth, Workers


def explain(need: Need, table: SlotTable, workers: Workers, growth: Growth) -> str:
    """Returns, for example, "4 slots exist, 4 are taken; no driver can add TaskExecutors"."""
    return "; ".join([_slots(need, table), *_prospects(need, workers, growth)])


def _slots(need: Need, table: SlotTable) -> str:
    total = table.given
    if total == 0:
        return (
            "no TaskExecutor is registered" if table.total == 0 else "all TaskExecutors are to stop"
        )
    unusable = table.unusable()
    free = table.free - sum(slot.state is SlotState.FREE for slot in unusable)
    taken = total - free - len(unusable)
    text = f"{_number(total, 'slot')} {'exists' if total == 1 else 'exist'}"
    text += f", {taken} {_are(taken)} taken"
    if free:
        sizes = sorted({str(r.profile) for r in need.requirements if not r.profile.unknown})
        text += f", {free} {_are(free)} free but not large enough"
        text += f" for {' and '.join(sizes)}" if sizes else ""
    if unusable:
        reason = unusable[0].problem.splitlines()[0]
        processes = "its process" if len(unusable) == 1 else "their processes"
        text += f", {len(unusable)} cannot start {processes} ({reason})"
    return text


def _prospects(need: Need, workers: Workers, growth: Growth) -> list[str]:
    if workers.spec is None:
        return ["no driver can add TaskExecutors"]
    parts = []
    lacking = sum(r.count for r in need.requirements)
    growing = growth.growing.get(need.job_id, 0)
    if workers.impediment:
        parts.append(f"no TaskExecutor can be started now: {_first_line(workers.impediment)}")
    if workers.undiscovered:
        parts.append("the TaskExecutors of an earlier ResourceManager are not known yet")
    if workers.starting:
        text = f"{_number(workers.starting, 'TaskExecutor')} {_are(workers.starting)} starting"
        if problem := workers.problem:
            text += f" ({_first_line(problem)})"
        parts.append(text)
    if workers.last_end:
        parts.append(f"the last TaskExecutor was lost ({_first_line(workers.last_end)})")
    if workers.last_failure:
        failure = _first_line(workers.last_failure)
        parts.append(f"the last TaskExecutor did not start ({failure}) and is tried again")
    elif growing < lacking and not growth.limited and not workers.undiscovered:
        parts.append(f"a TaskExecutor of this cluster offers {workers.spec.total} at most")
    if growth.limited:
        limit = f"{options.MAX_SLOTS.key}={workers.max_slots}"
        parts.append(
            f"the limit {limit} is reached"
            if workers.max_slots
            else f"no TaskExecutor may be added ({limit})"
        )
    return parts


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
