"""Faults that tests request of the API server."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Fault:
    """Meets the next `times` requests that match; an empty field matches all."""

    verb: str = ""
    resource: str = ""  # plural, or plural/subresource
    after: int = 0  # lets the first ones pass
    times: int = 1
    code: int = 0  # answers with this status, without executing the request
    retry_after_s: int | None = None
    hang: bool = False  # never answers, and does not execute the request
    lose_answer: bool = False  # executes the request, then breaks the connection


@dataclass(slots=True)
class Faults:
    pending: list[Fault] = field(default_factory=list)
    silent: bool = False  # open watches deliver nothing, and stay open
    controllers_stopped: bool = False

    def take(self, verb: str, resource: str) -> Fault | None:
        for fault in self.pending:
            if fault.verb not in ("", verb) or fault.resource not in ("", resource):
                continue
            if fault.after > 0:
                fault.after -= 1
            elif fault.times > 0:
                fault.times -= 1
                return fault
        return None
