"""Errors of the Kubernetes API, one class for each kind that callers handle differently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firesteel.errors import FiresteelError
from firesteel.kubernetes.resources import Target


class KubernetesConfigurationError(FiresteelError):
    """The configuration of the client is incomplete or wrong; the message names its file."""


class KubernetesError(FiresteelError):
    """A request failed. `code` is the HTTP status, or 0 if there was no answer; `message` is the
    API server's.
    """

    def __init__(self, target: Target, message: str, *, code: int = 0, advice: str = "") -> None:
        self.target = target
        self.code = code
        self.message = message
        super().__init__(f"cannot {target}: {message}{advice}")


class Unauthorized(KubernetesError):
    """The API server does not accept the caller's credentials."""


class Forbidden(KubernetesError):
    """The caller lacks a permission, or a policy of the cluster refuses the object."""


class QuotaExceeded(Forbidden):
    """The object would exceed a ResourceQuota of the namespace."""


class NotFound(KubernetesError):
    """The object, or its namespace, does not exist."""


class AlreadyExists(KubernetesError):
    """An object of this name exists."""


class Conflict(KubernetesError):
    """The object has changed since it was read, or a precondition does not hold."""


class Gone(KubernetesError):
    """The API server no longer has the requested resourceVersion: list again."""


class Invalid(KubernetesError):
    """The request or its object is invalid. `fields` has a message for each wrong field."""

    def __init__(
        self, target: Target, message: str, *, code: int, fields: Mapping[str, str]
    ) -> None:
        self.fields = fields
        super().__init__(target, message, code=code)


class TooManyRequests(KubernetesError):
    """The API server has not executed the request; it may be repeated after `retry_after_s`."""

    def __init__(self, target: Target, message: str, *, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(target, message, code=429)


class Unavailable(KubernetesError):
    """The API server did not answer, or failed. If `executed` is None, it may have executed the
    request.
    """

    def __init__(
        self,
        target: Target,
        message: str,
        *,
        code: int = 0,
        executed: bool | None = None,
        retry_after_s: float = 0.0,
    ) -> None:
        self.executed = executed
        self.retry_after_s = retry_after_s
        super().__init__(target, message, code=code)


def error_of(
    target: Target, code: int, status: Mapping[str, Any], *, retry_after_s: float = 0.0
) -> KubernetesError:
    """Returns the error that an answer describes. `status` is its body, a `Status`."""
    message = str(status.get("message") or status.get("reason") or f"HTTP {code}")
    reason = status.get("reason", "")
    match code:
        case 401:
            return Unauthorized(target, message, code=code)
        case 403:
            return _forbidden(target, message)
        case 404:
            return NotFound(target, message, code=code)
        case 409 if reason == "AlreadyExists":
            return AlreadyExists(target, message, code=code)
        case 409:
            return Conflict(target, message, code=code)
        case 410:
            return Gone(target, message, code=code)
        case 400 | 422:
            return Invalid(target, message, code=code, fields=_fields(status))
        case 429:
            return TooManyRequests(target, message, retry_after_s=retry_after_s)
        case _ if code >= 500:
            return Unavailable(target, message, code=code, retry_after_s=retry_after_s)
        case _:
            return KubernetesError(target, message, code=code)


def _forbidden(target: Target, message: str) -> Forbidden:
    if "exceeded quota" in message:  # text only: quotas have no other reason than Forbidden
        return QuotaExceeded(target, message, code=403)
    if " cannot " not in message:  # text only: of admission, as of PodSecurity
        return Forbidden(target, message, code=403)
    advice = (
        "\nThe ServiceAccount or user lacks the permission. This grants it, together with a"
        f" RoleBinding:\n{target.permission}"
    )
    return Forbidden(target, message, code=403, advice=advice)


def _fields(status: Mapping[str, Any]) -> dict[str, str]:
    causes = (status.get("details") or {}).get("causes") or ()
    return {cause["field"]: cause.get("message", "") for cause in causes if cause.get("field")}
