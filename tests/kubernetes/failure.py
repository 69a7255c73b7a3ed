"""Answers that refuse a request, as `Status` objects."""

from __future__ import annotations

from typing import Any


class Failure(Exception):
    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        causes: list[dict[str, str]] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.causes = causes or []
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> dict[str, Any]:
        details: dict[str, Any] = {"causes": self.causes} if self.causes else {}
        if self.retry_after_s is not None:
            details["retryAfterSeconds"] = self.retry_after_s
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": details,
            "code": self.code,
        }


def bad_request(message: str) -> Failure:
    return Failure(400, "BadRequest", message)


def forbidden(message: str) -> Failure:
    return Failure(403, "Forbidden", message)


def not_found(plural: str, group: str, name: str) -> Failure:
    resource = f"{plural}.{group}" if group else plural
    return Failure(404, "NotFound", f'{resource} "{name}" not found')


def conflict(plural: str, group: str, name: str, why: str) -> Failure:
    resource = f"{plural}.{group}" if group else plural
    return Failure(409, "Conflict", f'Operation cannot be fulfilled on {resource} "{name}": {why}')


def expired(message: str) -> Failure:
    return Failure(410, "Expired", message)


def invalid(kind: str, name: str, causes: list[tuple[str, str]]) -> Failure:
    """`causes` are pairs of a field and its problem."""
    shown = ", ".join(f"{field}: {problem}" for field, problem in causes)
    shown = f"[{shown}]" if len(causes) > 1 else shown
    return Failure(
        422,
        "Invalid",
        f'{kind} "{name}" is invalid: {shown}',
        causes=[
            {"reason": "FieldValueInvalid", "message": problem, "field": field}
            for field, problem in causes
        ],
    )
