"""Roles, and the identity that a verified credential gives its bearer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """The first four are roles of people, each of which includes those before it. The others are
    roles of the cluster's processes, and include nothing else.
    """

    VIEWER = "viewer"
    """Sees jobs, metrics and logs; changes nothing, and sees neither rows nor secrets."""
    OPERATOR = "operator"
    """Cancels, stops, scales and removes jobs; takes and disposes of savepoints; reads results."""
    SUBMITTER = "submitter"
    """Submits jobs, which is to run code as the user of the cluster's processes."""
    ADMIN = "admin"
    """Stops TaskExecutors and the cluster; creates and revokes tokens."""

    DISPATCHER = "dispatcher"
    RESOURCE_MANAGER = "resource-manager"
    JOB_MASTER = "job-master"
    TASK_EXECUTOR = "task-executor"
    SLOT = "slot"
    REST = "rest"
    """Passes the calls of people on, each with the token of its caller. Stops the jobs of sessions
    that have ended.
    """

    @property
    def is_person(self) -> bool:
        return self in PEOPLE

    def includes(self, other: Role) -> bool:
        """Whether a bearer of this role may do what `other` may."""
        if self.is_person and other.is_person:
            return PEOPLE.index(self) >= PEOPLE.index(other)
        return self is other


ADMINISTRATOR = "admin"  # the name of the user who has created the keys
PEOPLE = (Role.VIEWER, Role.OPERATOR, Role.SUBMITTER, Role.ADMIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The bearer of a credential that was verified."""

    subject: str  # the name of a person, or of a process
    role: Role
    token_id: str = ""  # empty: a certificate
    expires_s: float = 0.0  # seconds since 1970
    own_jobs: bool = False  # it acts on jobs alone that it has submitted

    def __str__(self) -> str:
        scope = " of own jobs" if self.own_jobs else ""
        return f"{self.subject} ({self.role.value}{scope})"
