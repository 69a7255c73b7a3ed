"""The content of a Lease, and its manifest.

`spec.holderIdentity` names the contender that holds the office, `spec.leaseTransitions` is the
epoch of the last leader, and an annotation announces the leader's address and epoch. Of the
times, no contender reads more than `creationTimestamp`: `renewTime` and `acquireTime` are for
people.
"""

from __future__ import annotations

import copy
import datetime
import json
import math
from dataclasses import dataclass, field
from typing import Any

from firesteel.common.ids import Epoch
from firesteel.common.leader import Leader
from firesteel.kubernetes.resources import LEASES, Object, version_of

# Annotations:
LEADER = "firesteel.io/leader"
EPOCH = "firesteel.io/epoch"  # that of the last leader
JOB_STORE = "firesteel.io/job-store"  # the id of the cluster's job store
EPOCHS_FROM = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    version: str = ""  # the resourceVersion; empty before it is created
    holder: str = ""
    transitions: int = 0  # the epoch of the last leader, in `spec`
    epoch: int = 0  # the same, in an annotation: people edit `spec`
    duration_s: float = 0.0
    leader: Leader | None = None  # the announcement; None: its holder does not lead yet
    renewal: int = 0  # counts the writes of the holder
    created_s: int = 0  # seconds from EPOCHS_FROM, by the clock of the API server
    job_store: str = ""
    manifest: Object = field(default_factory=dict, compare=False, repr=False)

    @property
    def released(self) -> bool:
        """Whether the last holder has left the office. Clearing `holderIdentity` by hand does not
        prove that, so the announcement must be gone as well.
        """
        return not self.holder and self.leader is None

    @property
    def unfinished(self) -> bool:
        """Whether a contender has created it, and did not take the office yet."""
        return bool(self.holder) and self.leader is None


def lease_of(manifest: Object) -> Lease:
    """Reads a Lease, which anybody may have edited. Never raises."""
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    leader, renewal = _announced(annotations.get(LEADER))
    return Lease(
        version=version_of(manifest),
        holder=str(spec.get("holderIdentity") or ""),
        transitions=_number(spec.get("leaseTransitions")),
        epoch=_number(_integer(annotations.get(EPOCH))),
        duration_s=float(_number(spec.get("leaseDurationSeconds"))),
        leader=leader,
        renewal=renewal,
        created_s=_seconds(str(metadata.get("creationTimestamp") or "")),
        job_store=str(annotations.get(JOB_STORE) or ""),
        manifest=manifest,
    )


def acquired_ms(manifest: Object) -> int:
    """Returns since when the leader leads, by its own clock; 0 if unknown."""
    moment = _moment(str((manifest.get("spec") or {}).get("acquireTime") or ""))
    return 0 if moment is None else int(moment.timestamp() * 1000)


def manifest_of(lease: Lease, name: str, now: datetime.datetime, *, taken: bool) -> Object:
    """Returns the manifest to write: that of `lease`, with the content of `lease`. `taken`: the
    holder has changed.
    """
    manifest = copy.deepcopy(lease.manifest) or {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
    }
    metadata = manifest["metadata"] = manifest.get("metadata") or {}
    metadata["name"] = name
    if lease.version:
        metadata["resourceVersion"] = lease.version
    annotations = metadata["annotations"] = metadata.get("annotations") or {}
    epoch = str(lease.epoch or "")
    for key, value in (
        (LEADER, _announcement(lease)),
        (EPOCH, epoch),
        (JOB_STORE, lease.job_store),
    ):
        annotations.pop(key, None)
        if value:
            annotations[key] = value
    spec = manifest["spec"] = manifest.get("spec") or {}
    at = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec["renewTime"] = at
    if taken or "acquireTime" not in spec:
        spec["acquireTime"] = at
    spec.pop("holderIdentity", None)
    if lease.holder:
        spec["holderIdentity"] = lease.holder
    spec["leaseTransitions"] = lease.transitions
    spec["leaseDurationSeconds"] = max(math.ceil(lease.duration_s), 1)
    return manifest


def _announcement(lease: Lease) -> str:
    if lease.leader is None:
        return ""
    return json.dumps(
        {
            "address": lease.leader.address,
            "epoch": lease.leader.epoch,
            "renewal": lease.renewal,
        }
    )


def _announced(annotation: Any) -> tuple[Leader | None, int]:
    if not annotation:
        return None, 0
    try:
        content = json.loads(annotation)
        leader = Leader(str(content["address"]), Epoch(int(content["epoch"])))
        return leader, int(content["renewal"])
    except (ValueError, KeyError, TypeError):
        return Leader("", Epoch(0)), 0  # edited: there may be a leader


def _integer(text: Any) -> int:
    return int(text) if str(text).isdecimal() else 0


def _number(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _seconds(timestamp: str) -> int:
    moment = _moment(timestamp)
    return 0 if moment is None else max(int((moment - EPOCHS_FROM).total_seconds()), 0)


def _moment(timestamp: str) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromisoformat(timestamp).astimezone(datetime.UTC)
    except ValueError:
        return None
