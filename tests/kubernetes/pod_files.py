"""The files and the environment of a pod that runs as processes of this machine.

Containers see the file system of this machine. Volumes are folders below the root of the pod, and
the path of each mount is a link below `ROOT`: what a container would see at /opt/conf is at
$FIRESTEEL_TEST_POD_ROOT/opt/conf. Commands, arguments and values of variables that name the path of
a mount are rewritten to that place. Content of files is not.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.kubernetes.kinds import Object
from tests.kubernetes.quantities import quantity
from tests.kubernetes.store import Key, Store

ROOT = "FIRESTEEL_TEST_POD_ROOT"
UID = "FIRESTEEL_TEST_POD_UID"  # marks the processes of a pod
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z0-9]+)\)")


class NotReady(Exception):
    """A ConfigMap, a Secret or a claim is missing; it may be created later."""


class PodFiles:
    """`host_paths` replaces folders of claims; `token` returns a new token of the pod's account."""

    def __init__(
        self, pod: Object, folder: Path, store: Store, *, authority: Path, token: str, claims: Path
    ) -> None:
        self.pod = pod
        self.folder = folder
        self.root = folder / "root"
        self.hosts = folder / "hosts"  # its /etc/hosts
        self._store = store
        self._authority = authority
        self._token = token
        self._claims = claims
        self._namespace = pod["metadata"]["namespace"]

    def create(self, containers: Iterable[Object]) -> None:
        """Creates or refreshes all volumes and mounts. Raises NotReady."""
        self.root.mkdir(parents=True, exist_ok=True)
        for volume in self.pod["spec"].get("volumes") or ():
            self._fill(volume)
        for container in containers:
            for mount in container.get("volumeMounts") or ():
                self._mount(mount)
        self.write_service_account(self._token)

    def write_service_account(self, token: str) -> None:
        self._token = token
        folder = self.place(SERVICE_ACCOUNT)
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / "token", token.encode())
        _write(folder / "namespace", self._namespace.encode())
        _write(folder / "ca.crt", self._authority.read_bytes())

    def place(self, path: str) -> Path:
        """Returns where a path of a container is."""
        return self.root / path.lstrip("/")

    def rewritten(self, text: str, container: Object) -> str:
        """Returns the text with the paths of mounts replaced by their places."""
        mounts = [mount["mountPath"].rstrip("/") for mount in container.get("volumeMounts") or ()]
        paths = sorted(filter(None, {*mounts, SERVICE_ACCOUNT}), key=len, reverse=True)
        pattern = rf"(?<![\w./-])({'|'.join(map(re.escape, paths))})(?![\w.-])"
        return re.sub(pattern, lambda found: str(self.place(found[1])), text)

    # ---- environment

    def environment(self, container: Object, given: Mapping[str, str]) -> dict[str, str]:
        """Returns the variables of a container; `given` has those of its image and its node.
        Raises NotReady.
        """
        found = dict(given)
        for source in container.get("envFrom") or ():
            for name, value in self._source(source).items():
                found[source.get("prefix", "") + name] = value
        for variable in container.get("env") or ():
            value = self._value(variable, container)
            if value is not None:
                found[variable["name"]] = self.rewritten(expanded(value, found), container)
        return found

    def _source(self, source: Object) -> dict[str, str]:
        for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if reference := source.get(field):
                data = self._data(kind, reference["name"], optional=reference.get("optional"))
                return {name: content.decode() for name, content in data.items()}
        return {}

    def _value(self, variable: Object, container: Object) -> str | None:
        source = variable.get("valueFrom")
        if not source:
            return str(variable.get("value", ""))
        if field := source.get("fieldRef"):
            return self.field(field["fieldPath"])
        if field := source.get("resourceFieldRef"):
            return _resource(container, field)
        for name, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
            if reference := source.get(name):
                optional = reference.get("optional")
                data = self._data(kind, reference["name"], optional=optional)
                if reference["key"] in data:
                    return data[reference["key"]].decode()
                if not optional:
                    raise NotReady(
                        f"couldn't find key {reference['key']} in {kind}"
                        f" {self._namespace}/{reference['name']}"
                    )
        return None

    def field(self, path: str) -> str:
        """Returns a field for the downward API."""
        if found := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
            return str((self.pod["metadata"].get(found[1]) or {}).get(found[2], ""))
        value: Any = self.pod
        for part in path.split("."):
            value = (value or {}).get(part)
        if isinstance(value, dict):
            return "\n".join(f'{name}="{text}"' for name, text in sorted(value.items()))
        return "" if value is None else str(value)

    # ---- volumes

    def _fill(self, volume: Object) -> None:
        place = self._volume(volume["name"])
        if "emptyDir" in volume:
            place.mkdir(parents=True, exist_ok=True)
        elif "hostPath" in volume:
            _link(place, Path(volume["hostPath"]["path"]))
        elif claim := volume.get("persistentVolumeClaim"):
            name = claim["claimName"]
            if self._store.get(Key("PersistentVolumeClaim", self._namespace, name)) is None:
                raise NotReady(f'persistentvolumeclaim "{name}" not found')
            folder = self._claims / self._namespace / name
            folder.mkdir(parents=True, exist_ok=True)
            _link(place, folder)
        else:
            self._write_all(place, self._contents(volume), self._mode(volume))

    def _mode(self, volume: Object) -> int:
        """Returns the mode of the files of a volume, which are read-only."""
        kinds = ("configMap", "secret", "downwardAPI", "projected")
        source: Object = next((volume[kind] for kind in kinds if kind in volume), {})
        mode = int(source.get("defaultMode") or 0o644)
        if "fsGroup" in (self.pod["spec"].get("securityContext") or {}):
            mode |= 0o440
        return mode

    def _contents(self, source: Object) -> dict[str, bytes]:
        if configured := source.get("configMap"):
            return self._items("ConfigMap", configured.get("name", ""), configured)
        if configured := source.get("secret"):
            name = configured.get("secretName") or configured.get("name", "")
            return self._items("Secret", name, configured)
        if configured := source.get("downwardAPI"):
            return {
                item["path"]: self.field(item["fieldRef"]["fieldPath"]).encode()
                for item in configured.get("items") or ()
            }
        if configured := source.get("serviceAccountToken"):
            return {configured["path"]: self._token.encode()}
        contents: dict[str, bytes] = {}
        for each in (source.get("projected") or {}).get("sources") or ():
            contents |= self._contents(each)
        return contents

    def _items(self, kind: str, name: str, configured: Object) -> dict[str, bytes]:
        data = self._data(kind, name, optional=configured.get("optional"))
        if items := configured.get("items"):
            missing = [item["key"] for item in items if item["key"] not in data]
            if missing and not configured.get("optional"):
                raise NotReady(f"references non-existent config key: {missing[0]}")
            return {item["path"]: data[item["key"]] for item in items if item["key"] in data}
        return data

    def _data(self, kind: str, name: str, *, optional: bool | None) -> dict[str, bytes]:
        found = self._store.get(Key(kind, self._namespace, name))
        if found is None:
            if optional:
                return {}
            raise NotReady(f'{kind.lower()} "{name}" not found')
        data = found.get("data") or {}
        if kind == "Secret":
            return {key: base64.b64decode(text) for key, text in data.items()}
        binary = found.get("binaryData") or {}
        return {key: text.encode() for key, text in data.items()} | {
            key: base64.b64decode(text) for key, text in binary.items()
        }

    def _write_all(self, place: Path, contents: Mapping[str, bytes], mode: int) -> None:
        place.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_bytes() != content:
                _write(path, content, mode)
        for path in place.iterdir():
            if not any(Path(name).parts[0] == path.name for name in contents):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _volume(self, name: str) -> Path:
        return self.folder / "volumes" / name

    def _mount(self, mount: Object) -> None:
        target = self._volume(mount["name"]) / mount.get("subPath", "")
        if mount.get("subPath") and not target.exists():
            target.mkdir(parents=True)
        _link(self.place(mount["mountPath"].rstrip("/")), target)


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Expands $(NAME); $$ is a dollar sign, and unknown names stay."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return _REFERENCE.sub(value, text)


def _resource(container: Object, field: Object) -> str:
    group, _, name = field["resource"].partition(".")
    value = ((container.get("resources") or {}).get(group) or {}).get(name)
    if value is None:  # the room of the node
        return str(os.cpu_count() if name == "cpu" else 2**36)
    amount = quantity(value) / quantity(field.get("divisor") or "1")
    return str(-int(-amount // 1))


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replaces the file, as Kubernetes does: readers see the old content or the new one."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(content)
    temporary.chmod(mode)
    temporary.replace(path)


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink():
        path.symlink_to(target)
