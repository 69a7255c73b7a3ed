"""Everything that a client needs in order to reach one API server."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.kubernetes.access.credentials import Credentials
from firesteel.kubernetes.access.tls import Tls


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    origin: str  # where it was configured, for people
    server: str  # the URL, without a slash at its end
    namespace: str  # of requests that name none
    credentials: Credentials
    tls: Tls
    proxy: str | None = None
    in_pod: bool = False  # this process runs in the cluster, and reaches pods by their addresses
