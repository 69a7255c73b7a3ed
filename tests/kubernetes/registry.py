"""Creates, updates and deletes objects by the rules of their kinds. HTTP and controllers call it."""

from __future__ import annotations

import base64
import copy
import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.kubernetes import admission, apply, patches
from tests.kubernetes.failure import Failure, bad_request, conflict, forbidden, not_found
from tests.kubernetes.kinds import BY_NAME, Kind, Object
from tests.kubernetes.quantities import pod_resources, quantity
from tests.kubernetes.store import Key, Store

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_SYSTEM_METADATA = (
    *("uid", "creationTimestamp", "resourceVersion", "generation", "managedFields"),
    *("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"),
)
FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"


class Registry:
    def __init__(self, store: Store) -> None:
        self.store = store
        self._random = random.Random()
        self._owners: dict[str, apply.Owners] = {}  # by uid
        self._addresses = 0

    # ---- reads

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        found = self.store.get(Key(kind.kind, namespace, name))
        if found is None:
            raise not_found(kind.plural, kind.group, name)
        return found

    # ---- writes

    def create(
        self, kind: Kind, namespace: str, value: Object, manager: str = "", *, dry_run: bool = False
    ) -> Object:
        value = copy.deepcopy(value)
        metadata = value["metadata"] = dict(value.get("metadata") or {})
        self._check_identity(kind, namespace, value)
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        for field in _SYSTEM_METADATA:
            metadata.pop(field, None)
        if not metadata.get("name") and metadata.get("generateName"):
            prefix = metadata["generateName"][:58]
            metadata["name"] = prefix + "".join(self._random.choices(_SUFFIX, k=5))
        if kind.namespaced:
            metadata["namespace"] = namespace
            self._check_namespace(kind, namespace, metadata.get("name", ""))
        if kind.status:
            value.pop("status", None)
        admission.default(kind, value)
        self._fill(kind, value)
        admission.validate(kind, value, None)
        key = Key(kind.kind, namespace, metadata["name"])
        if self.store.get(key) is not None:
            resource = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
            raise Failure(409, "AlreadyExists", f'{resource} "{key.name}" already exists')
        if kind.kind == "Pod":
            self._check_quota(namespace, value)
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = now()
        if kind.generation:
            metadata["generation"] = 1
        if dry_run:
            return value
        self._own(metadata["uid"], {}, value, manager)
        return self._stored(kind, key, value)

    def update(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        value: Object,
        manager: str = "",
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        before = self.get(kind, namespace, name)
        value = copy.deepcopy(value)
        self._check_identity(kind, namespace, value)
        if value["metadata"].get("name", name) != name:
            raise bad_request(
                f"the name of the object ({value['metadata']['name']}) does not match the name on"
                f" the URL ({name})"
            )
        return self._replace(kind, before, value, manager, subresource=subresource, dry_run=dry_run)

    def patch(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        change: Callable[[Object], Object],
        manager: str = "",
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        before = self.get(kind, namespace, name)
        changed = change(copy.deepcopy(before))
        return self._replace(
            kind, before, changed, manager, subresource=subresource, dry_run=dry_run
        )

    def apply(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        applied: Object,
        manager: str,
        *,
        force: bool,
        dry_run: bool = False,
    ) -> Object:
        if not manager:
            raise bad_request("PatchOptions.meta.k8s.io is invalid: fieldManager: Required value")
        if (applied.get("metadata") or {}).get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        before = self.store.get(Key(kind.kind, namespace, name))
        if before is None:
            created = copy.deepcopy(applied)
            created.setdefault("metadata", {})["name"] = name
            stored = self.create(kind, namespace, created, dry_run=dry_run)
            uid = stored["metadata"]["uid"]
            if dry_run:
                return stored
            self._owners[uid] = {(manager, "Apply"): set(apply.fields_of(applied))}
            return self._stored(kind, Key(kind.kind, namespace, name), copy.deepcopy(stored))
        uid = before["metadata"]["uid"]
        owners = copy.deepcopy(self._owners.get(uid, {}))
        merged = apply.apply(before, applied, manager, owners, force=force)
        result = self._replace(kind, before, merged, None, dry_run=dry_run)
        if not dry_run:
            self._owners[uid] = owners
        return result

    def delete(
        self, kind: Kind, namespace: str, name: str, options: Object | None = None
    ) -> Object:
        """Removes the object, or marks it as deleted if it still has to wait."""
        options = options or {}
        found = self.get(kind, namespace, name)
        metadata = found["metadata"]
        for field in ("uid", "resourceVersion"):
            wanted = (options.get("preconditions") or {}).get(field)
            if wanted and wanted != metadata[field]:
                why = f"Precondition failed: {field} in precondition: {wanted}, in object meta: {metadata[field]}"
                raise conflict(kind.plural, kind.group, name, why)
        policy = options.get("propagationPolicy") or "Background"
        finalizers = [f for f in metadata.get("finalizers") or [] if f not in (FOREGROUND, ORPHAN)]
        finalizers += {"Foreground": [FOREGROUND], "Orphan": [ORPHAN]}.get(policy, [])
        grace_s = self._grace_s(kind, found, options)
        if kind.kind == "Namespace":
            return self._terminate_namespace(found)
        if not finalizers and grace_s == 0:
            return self.store.remove(Key(kind.kind, namespace, name))
        old_grace_s = metadata.get("deletionGracePeriodSeconds")
        marked_before = "deletionTimestamp" in metadata
        sooner = old_grace_s is not None and grace_s < old_grace_s
        if marked_before and not sooner and finalizers == (metadata.get("finalizers") or []):
            return found
        marked = copy.deepcopy(found)
        marked["metadata"]["deletionTimestamp"] = now(grace_s)
        marked["metadata"]["deletionGracePeriodSeconds"] = grace_s
        marked["metadata"]["finalizers"] = finalizers
        if not finalizers:
            del marked["metadata"]["finalizers"]
        return self._stored(kind, Key(kind.kind, namespace, name), marked)

    def set_status(self, kind: Kind, found: Object, status: Object) -> None:
        """Sets the status, if it differs; the object may have changed or gone since `found`."""
        key = key_of(kind, found)
        current = self.store.get(key)
        if current is None or current["metadata"]["uid"] != found["metadata"]["uid"]:
            return
        if current.get("status") != status:
            self._stored(kind, key, current | {"status": status})

    def event(self, about: Object, reason: str, message: str, *, warning: bool = False) -> None:
        """Records an Event about an object; repeated ones are counted."""
        metadata = about["metadata"]
        namespace = metadata.get("namespace", "default")
        for each in self.store.all("Event", namespace):
            involved = each["involvedObject"]
            same = (involved.get("uid"), each["reason"], each["message"])
            if same == (metadata["uid"], reason, message):
                seen = each | {"count": each.get("count", 1) + 1, "lastTimestamp": now()}
                self.store.put(key_of(BY_NAME["Event"], each), seen)
                return
        name = f"{metadata['name']}.{uuid.uuid4().hex[:16]}"
        if self.store.get(Key("Namespace", "", namespace)) is None:
            return
        self.create(
            BY_NAME["Event"],
            namespace,
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name},
                "involvedObject": {
                    "apiVersion": about["apiVersion"],
                    "kind": about["kind"],
                    "name": metadata["name"],
                    "namespace": metadata.get("namespace", ""),
                    "uid": metadata["uid"],
                    "resourceVersion": metadata["resourceVersion"],
                },
                "reason": reason,
                "message": message,
                "type": "Warning" if warning else "Normal",
                "source": {"component": "tests"},
                "firstTimestamp": now(),
                "lastTimestamp": now(),
                "count": 1,
            },
        )

    # ---- inside

    def _replace(
        self,
        kind: Kind,
        before: Object,
        value: Object,
        manager: str | None,
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        """`manager` is None for apply, which has decided about the owners itself."""
        metadata = value["metadata"]
        expected = metadata.get("resourceVersion")
        name = before["metadata"]["name"]
        if expected and expected != before["metadata"]["resourceVersion"]:
            why = "the object has been modified; please apply your changes to the latest version and try again"
            raise conflict(kind.plural, kind.group, name, why)
        uid = metadata.get("uid")
        if uid and uid != before["metadata"]["uid"]:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {before['metadata']['uid']}"
            raise conflict(kind.plural, kind.group, name, why)
        if subresource == "status":
            value = before | {"status": value.get("status") or {}}
            metadata = value["metadata"] = dict(before["metadata"])
        elif kind.status:
            value = value | {"status": before.get("status") or {}}
            if "status" not in before and not value["status"]:
                del value["status"]
        for field in _SYSTEM_METADATA:
            metadata.pop(field, None)
            if field in before["metadata"]:
                metadata[field] = before["metadata"][field]
        metadata.setdefault("name", name)
        if kind.namespaced:
            metadata.setdefault("namespace", before["metadata"]["namespace"])
        value["apiVersion"], value["kind"] = kind.api_version, kind.kind
        if subresource != "status":
            admission.default(kind, value)
            self._keep(kind, value, before)
            admission.validate(kind, value, before)
        if kind.generation and value.get("spec") != before.get("spec"):
            metadata["generation"] = before["metadata"].get("generation", 0) + 1
        key = key_of(kind, before)
        finalized = "deletionTimestamp" in metadata and not metadata.get("finalizers")
        if finalized and kind.kind != "Pod" and not dry_run:
            return self.store.remove(key)
        if dry_run or _same_content(before, value):
            return before if not dry_run else value
        if manager is not None:
            self._own(metadata["uid"], before, value, manager)
        return self._stored(kind, key, value)

    def _stored(self, kind: Kind, key: Key, value: Object) -> Object:
        value = dict(value)
        uid = value["metadata"]["uid"]
        if owners := self._owners.get(uid):
            managed = apply.managed_fields(owners, kind.api_version)
            value["metadata"] = value["metadata"] | {"managedFields": managed}
        value["apiVersion"], value["kind"] = kind.api_version, kind.kind
        return self.store.put(key, value)

    def _own(self, uid: str, before: Object, after: Object, manager: str) -> None:
        if manager:
            apply.updated(before, after, manager, self._owners.setdefault(uid, {}))

    def _check_identity(self, kind: Kind, namespace: str, value: Object) -> None:
        if not isinstance(value.get("metadata"), dict):
            raise bad_request("metadata is missing")
        version, its_kind = value.get("apiVersion"), value.get("kind")
        if (version or kind.api_version, its_kind or kind.kind) != (kind.api_version, kind.kind):
            raise bad_request(
                f"{version}, Kind={its_kind} does not match {kind.api_version}, Kind={kind.kind}"
            )
        if kind.namespaced and value["metadata"].get("namespace", namespace) != namespace:
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the"
                " request"
            )

    def _check_namespace(self, kind: Kind, namespace: str, name: str) -> None:
        found = self.store.get(Key("Namespace", "", namespace))
        if found is None:
            raise not_found("namespaces", "", namespace)
        if "deletionTimestamp" in found["metadata"]:
            raise Failure(
                403,
                "Forbidden",
                f'{kind.plural} "{name}" is forbidden: unable to create new content in namespace'
                f" {namespace} because it is being terminated",
                causes=[{"reason": "NamespaceTerminating", "message": "", "field": ""}],
            )

    def _fill(self, kind: Kind, value: Object) -> None:
        match kind.kind:
            case "Service" if not value["spec"].get("clusterIP"):
                self._addresses += 1
                high, low = divmod(self._addresses, 250)
                value["spec"]["clusterIP"] = f"127.96.{high}.{low + 1}"
                value["spec"]["clusterIPs"] = [value["spec"]["clusterIP"]]
            case "Secret":
                value.setdefault("type", "Opaque")
                self._encode(value)
            case "Namespace":
                value.setdefault("status", {})["phase"] = "Active"
            case _:
                pass

    def _keep(self, kind: Kind, value: Object, before: Object) -> None:
        """Sets fields that updates may omit, although the API server has chosen them."""
        if kind.kind == "Service":
            for field in ("clusterIP", "clusterIPs"):
                if not value["spec"].get(field) and field in before["spec"]:
                    value["spec"][field] = before["spec"][field]
        elif kind.kind == "Secret":
            value.setdefault("type", before["type"])
            self._encode(value)
        elif kind.kind == "Pod" and before["spec"].get("nodeName"):
            value["spec"].setdefault("nodeName", before["spec"]["nodeName"])

    def _encode(self, secret: Object) -> None:
        for key, text in (secret.pop("stringData", None) or {}).items():
            encoded = base64.b64encode(text.encode()).decode()
            secret["data"] = (secret.get("data") or {}) | {key: encoded}

    def _check_quota(self, namespace: str, pod: Object) -> None:
        for quota in self.store.all("ResourceQuota", namespace):
            hard = (quota.get("spec") or {}).get("hard") or {}
            requested, used = _usage(pod), quota_usage(self.store, namespace)
            over = [
                name
                for name, limit in hard.items()
                if name in requested and used.get(name, 0) + requested[name] > quantity(limit)
            ]
            if over:
                name = quota["metadata"]["name"]
                raise forbidden(
                    f'pods "{pod["metadata"]["name"]}" is forbidden: exceeded quota: {name}, requested: '
                    + ",".join(f"{n}={requested[n]:f}" for n in over)
                    + ", used: "
                    + ",".join(f"{n}={used.get(n, 0):f}" for n in over)
                    + ", limited: "
                    + ",".join(f"{n}={hard[n]}" for n in over)
                )

    def _grace_s(self, kind: Kind, found: Object, options: Object) -> int:
        if kind.kind != "Pod":
            return 0
        terminal = (found.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if terminal or not found["spec"].get("nodeName"):
            return 0
        wanted = options.get("gracePeriodSeconds")
        grace_s: int = found["spec"]["terminationGracePeriodSeconds"] if wanted is None else wanted
        return grace_s

    def _terminate_namespace(self, found: Object) -> Object:
        marked = copy.deepcopy(found)
        marked["metadata"].setdefault("deletionTimestamp", now())
        marked["status"] = {"phase": "Terminating"}
        return self.store.put(Key("Namespace", "", found["metadata"]["name"]), marked)


def now(offset_s: int = 0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=offset_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def key_of(kind: Kind, found: Object) -> Key:
    metadata = found["metadata"]
    return Key(kind.kind, metadata.get("namespace", ""), metadata["name"])


def quota_usage(store: Store, namespace: str) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for pod in store.all("Pod", namespace):
        if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            for name, amount in _usage(pod).items():
                total[name] = total.get(name, 0) + amount
    return total


def _usage(pod: Object) -> dict[str, Any]:
    requests, limits = pod_resources(pod, "requests"), pod_resources(pod, "limits")
    return {
        "pods": quantity(1),
        "count/pods": quantity(1),
        **requests,
        **{f"requests.{name}": amount for name, amount in requests.items()},
        **{f"limits.{name}": amount for name, amount in limits.items()},
    }


def _same_content(before: Object, after: Object) -> bool:
    def content(value: Object) -> Object:
        metadata = {
            k: v
            for k, v in value["metadata"].items()
            if k not in ("resourceVersion", "managedFields")
        }
        return value | {"metadata": metadata}

    return content(before) == content(after)


def change_of(content_type: str, body: Any) -> Callable[[Object], Object]:
    """Returns the function that carries out a patch. Raises Failure."""
    match content_type:
        case "application/merge-patch+json":
            return lambda found: patches.merge(found, body)  # type: ignore[no-any-return]
        case "application/strategic-merge-patch+json":
            return lambda found: patches.strategic(found, body)  # type: ignore[no-any-return]
        case _:
            raise Failure(
                415,
                "UnsupportedMediaType",
                f"the body of the request was in an unknown format - accepted media types include:"
                f" merge-patch, strategic-merge-patch and apply-patch, not {content_type}",
            )
