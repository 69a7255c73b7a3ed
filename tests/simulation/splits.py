"""Checks the ownership of splits in the JobMaster's messages to its tasks: each split has one owner
at any time (invariant 17).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from firesteel.common.ids import AttemptId, OperatorId
from firesteel.common.operator_messages import SplitAssigned
from firesteel.common.states import ExecutionState, JobStatus
from jobmaster.core import commands, events
from jobmaster.shell import RunningJob
from tests.simulation.checkpoints import held_in

_GONE = (ExecutionState.FAILED, ExecutionState.CANCELED)


def name_of(split: Any) -> str:
    return json.dumps(split, sort_keys=True)


class SplitOwners:
    def __init__(self) -> None:
        # By job and operator: the attempts that have had each split.
        self._owners: dict[tuple[str, OperatorId], dict[str, set[AttemptId]]] = {}
        # The splits of these that messages have assigned, by place.
        self._sent: dict[tuple[str, OperatorId], dict[AttemptId, dict[int, str]]] = {}
        self.reassigned = 0  # splits that an earlier attempt had

    def check(self, job: RunningJob, sent: Iterable[commands.Command]) -> str:
        """Checks the commands that a JobMaster sends; returns the violation, if any."""
        for operator_id, split, attempt_id, place in _assignments(sent):
            if place is not None:
                by_attempt = self._sent.setdefault((job.job_id, operator_id), {})
                by_attempt.setdefault(attempt_id, {})[place] = split
            owners = self._owners.setdefault((job.job_id, operator_id), {}).setdefault(split, set())
            if attempt_id in owners:
                continue
            attempts = job.core.graph.attempts  # the current ones
            fails = job.core.graph.status is JobStatus.FAILING  # all tasks are to restart
            gone = (*_GONE, ExecutionState.CANCELING) if fails else _GONE
            others = [
                owner for owner in owners if owner in attempts and attempts[owner].state not in gone
            ]
            if others:
                return f"split {split} is given to attempt {attempt_id}; {others} has it"
            self.reassigned += bool(owners) and place is not None
            owners.add(attempt_id)
        return ""

    def held(self, job: RunningJob, event: events.TaskHeld) -> None:
        """Records the splits that a task holds. Sent splits that are missing here are lost: they
        have no owner.
        """
        for operator_id, splits in event.splits.items():
            key = (job.job_id, operator_id)
            sent = self._sent.get(key, {}).get(event.attempt_id, {})
            for place in sent.keys() - {split.place for split in splits}:
                self._owners[key][sent.pop(place)].discard(event.attempt_id)


def _assignments(
    sent: Iterable[commands.Command],
) -> Iterator[tuple[OperatorId, str, AttemptId, int | None]]:
    """Operator, split, attempt, and the split's place; None: it is part of what that restores."""
    for command in sent:
        match command:
            case commands.SendOperatorMessage(message=SplitAssigned(split_json=split, place=place)):
                name = name_of(json.loads(split))
                yield command.operator_id, name, command.attempt_id, place
            case commands.DeployTasks():
                for task in command.tasks:
                    for snapshot in task.restored or ():
                        for split in held_in(snapshot):
                            yield snapshot.operator_id, name_of(split), task.attempt_id, None
            case _:
                pass
