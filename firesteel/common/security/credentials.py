"""Credentials as data: what a process holds, and what a TaskExecutor gives to its slots.

Slots import this module: it needs the standard library alone.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

TOKEN_VARIABLE = "FIRESTEEL_TOKEN"  # the environment variable with the token of a client
BEARER = "Bearer "  # before a token, in the header `authorization`
_VARIABLE = "FIRESTEEL_SLOT_CREDENTIALS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate with its key and the authority that signed it, in PEM."""

    certificate: bytes
    key: bytes
    authority: bytes
    expires_s: float = 0.0  # seconds since 1970; 0: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCredentials:
    """`token`: for the link to the TaskExecutor. `certificate`: None without TLS."""

    token: str
    certificate: Certificate | None = None

    def to_environment(self) -> dict[str, str]:
        content: dict[str, Any] = {"token": self.token, "certificate": None}
        if self.certificate is not None:
            pem = asdict(self.certificate)
            content["certificate"] = {
                name: value.decode() for name, value in pem.items() if isinstance(value, bytes)
            }
        return {_VARIABLE: json.dumps(content)}

    @classmethod
    def from_environment(cls) -> SlotCredentials | None:
        """Takes the credentials out of the environment of this process; None if it has none."""
        text = os.environ.pop(_VARIABLE, None)
        if text is None:
            return None
        content = json.loads(text)
        pem = content["certificate"]
        return cls(
            token=content["token"],
            certificate=Certificate(**{name: value.encode() for name, value in pem.items()})
            if pem
            else None,
        )
