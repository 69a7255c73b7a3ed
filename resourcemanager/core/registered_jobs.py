"""A job as the SlotManager sees it: its JobMaster and its unmet requirements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from firesteel.common.ids import Epoch, JobId, TaskExecutorId
from firesteel.common.resources import ResourceProfile, environment_key
from resourcemanager.core.commands import NotEnoughResources
from resourcemanager.core.events import Connection, Environment, Requirement
from resourcemanager.core.matching import Need


class LostExecutor(NamedTuple):
    task_executor_id: TaskExecutorId
    cause: str


@dataclass(slots=True, kw_only=True)
class RegisteredJob:
    """Exists from its JobMaster's registration to that JobMaster's death. Its slots may outlive it,
    as their TaskExecutors report.
    """

    job_id: JobId
    name: str
    address: str
    epoch: Epoch
    connection: Connection | None = None  # None: broken, perhaps back soon; it gets no new slots
    heard_at: float = 0.0
    sequence: int = -1  # of the newest declaration
    requirements: tuple[Requirement, ...] = ()
    environment: Environment = ()
    lost_meanwhile: list[LostExecutor] = field(default_factory=list)  # while it was disconnected
    # The holders of its slots as last sent, until it declares requirements; None: not being sent.
    told_holders: tuple[TaskExecutorId, ...] | None = None
    shortage: NotEnoughResources | None = None  # as last sent; None: it lacks no slots

    @property
    def required(self) -> int:
        return sum(r.count for r in self.requirements)

    def need(self, requirements: tuple[Requirement, ...]) -> Need:
        return Need(
            job_id=self.job_id,
            requirements=requirements,
            environment=environment_key(self.environment),
        )


def unmet(
    requirements: Sequence[Requirement], held: Sequence[ResourceProfile]
) -> tuple[Requirement, ...]:
    """Returns the requirements that slots of the `held` profiles do not meet.

    A slot meets one requirement: first one of exactly its size, then an UNKNOWN one, then the
    largest that fits in it. JobMasters assign their slots in the same order.
    """
    lacking = [r.count for r in requirements]
    if sum(lacking) == 0:
        return ()
    if all(r.profile.unknown for r in requirements):  # session mode: only the number matters
        return _reduce(requirements, lacking, len(held))
    order = sorted(range(len(requirements)), key=lambda i: -requirements[i].profile.total_bytes)
    spare: list[ResourceProfile] = []
    for profile in held:
        exact = next((i for i in order if lacking[i] and requirements[i].profile == profile), None)
        if exact is None:
            spare.append(profile)
        else:
            lacking[exact] -= 1
    for profile in sorted(
        spare, key=lambda p: p.total_bytes
    ):  # large slots are kept for large requirements
        enough = next((i for i in order if lacking[i] and requirements[i].profile.unknown), None)
        if enough is None:
            enough = next(
                (i for i in order if lacking[i] and requirements[i].profile.fits_in(profile)), None
            )
        if enough is not None:
            lacking[enough] -= 1
    return _nonzero(requirements, lacking)


def _reduce(
    requirements: Sequence[Requirement], lacking: list[int], held: int
) -> tuple[Requirement, ...]:
    for i, count in enumerate(lacking):
        lacking[i] = max(0, count - held)
        held = max(0, held - count)
    return _nonzero(requirements, lacking)


def _nonzero(
    requirements: Sequence[Requirement], lacking: Sequence[int]
) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(profile=r.profile, count=n)
        for r, n in zip(requirements, lacking, strict=True)
        if n
    )
