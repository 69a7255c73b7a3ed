"""Runs the pods of some nodes as processes of this machine, for an `ApiServer` of this process.

Each pod has its own address in 127.128.0.0/9, so pods may use equal ports if they listen on their
address (`status.podIP`) instead of on all addresses. `pod_files.py` says where the files of a pod
are. Pods find the API server as in a cluster: KUBERNETES_SERVICE_HOST, and the token of their
ServiceAccount below FIRESTEEL_SERVICE_ACCOUNT_DIR.

If this machine permits mount namespaces, every pod has its own /etc/hosts, in which the name of a
Service has the address of a ready pod. There are no virtual addresses of Services, so ports of
Services that differ from those of their pods do not work.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.kubernetes import names
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.containers import Container, Image, Node, kill_marked
from tests.kubernetes.failure import Failure
from tests.kubernetes.kinds import BY_NAME, Object
from tests.kubernetes.pod_files import SERVICE_ACCOUNT, NotReady, PodFiles
from tests.kubernetes.registry import Registry, key_of, now

POD, NODE = BY_NAME["Pod"], BY_NAME["Node"]
HOST = "127.0.0.1"
_ADDRESSES = itertools.count()
_OURS = ("Initialized", "ContainersReady", "Ready", "PodReadyToStartContainers")


class Kubelet:
    """Use it in a `with`. Methods may be called from any thread; `node` may be changed."""

    def __init__(
        self, server: ApiServer, root: Path, *, nodes: tuple[str, ...] = ("node-1",)
    ) -> None:
        self.node = Node()
        self.root = root
        self._server = server
        self._nodes = nodes
        self._lost: set[str] = set()
        self._pods: dict[str, _Pod] = {}  # by uid

    def __enter__(self) -> Self:
        for name in self._nodes:
            self._server.add_node(name)
        self._server.log_of = self._log_of
        self._running = self._server.thread.do(lambda: asyncio.ensure_future(self._run()))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.thread.call(self._stop())

    # ---- what tests do

    def add_image(self, name: str, image: Image) -> None:
        self.node.images[name] = image

    def break_image(self, name: str, message: str = "manifest unknown") -> None:
        """Containers of this image cannot be started from now on."""
        self.node.broken_images[name] = message

    def repair_image(self, name: str) -> None:
        self.node.broken_images.pop(name, None)

    def kill(self, pod: str, *, namespace: str = "default", container: str = "") -> None:
        """Kills the processes of a container with SIGKILL."""
        self._kill(pod, namespace, container, "")

    def oom_kill(self, pod: str, *, namespace: str = "default", container: str = "") -> None:
        """Kills a container as the kernel does that exceeds its memory limit."""
        self._kill(pod, namespace, container, "OOMKilled")

    def evict(self, pod: str, *, namespace: str = "default", statuses: bool = False) -> None:
        """Ends a pod because its node is short of memory. By default, the status of the pod no
        longer has its containers.
        """
        self._server.thread.call(self._find(pod, namespace).evict(statuses=statuses))

    def lose_node(self, name: str, *, kill: bool = True) -> None:
        """The node is not ready, and the status of its pods no longer changes; its processes are
        killed, or run on without being seen.
        """
        self._server.thread.call(self._lose(name, kill))

    def evict_from_lost_node(self, name: str) -> None:
        """Deletes the pods of a lost node, as Kubernetes does after five minutes. They stay in
        deletion, since their kubelet does not answer.
        """

        def act(registry: Registry) -> None:
            for pod in registry.store.all(POD):
                if pod["spec"].get("nodeName") == name:
                    key = key_of(POD, pod)
                    registry.delete(POD, key.namespace, key.name)

        self._server.act(act)

    def remove_node(self, name: str) -> None:
        """Removes a lost node and its pods, as the cloud does."""

        def act(registry: Registry) -> None:
            registry.delete(NODE, "", name)
            for pod in registry.store.all(POD):
                if pod["spec"].get("nodeName") == name:
                    key = key_of(POD, pod)
                    registry.delete(POD, key.namespace, key.name, {"gracePeriodSeconds": 0})

        self._server.act(act)

    def rotate_tokens(self) -> None:
        """Replaces the tokens of all pods; the old ones are refused from now on."""
        self._server.thread.do(lambda: [pod.rotate_token() for pod in self._pods.values()])

    def log(self, pod: str, *, namespace: str = "default", container: str = "") -> str:
        return self._log_of(namespace, pod, container, False).read_text()

    # ---- inside

    async def _run(self) -> None:
        store = self._server.store
        mounted: set[str] = set()
        while True:
            configured = {
                found["metadata"]["resourceVersion"]
                for kind in ("ConfigMap", "Secret")
                for found in store.all(kind)
            }
            refresh, mounted = configured != mounted, configured
            present = set()
            for pod in store.all(POD):
                uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
                present.add(uid)
                if node not in self._nodes or node in self._lost:
                    continue
                if uid not in self._pods and pod["status"]["phase"] in ("Succeeded", "Failed"):
                    continue
                if uid not in self._pods:
                    self._pods[uid] = self._new(pod)
                self._pods[uid].update(pod, refresh=refresh)
            for uid in self._pods.keys() - present:  # deleted by force
                self._pods.pop(uid).forget()
            await store.changed()

    def _new(self, pod: Object) -> _Pod:
        return _Pod(pod, self, self._server, _new_address())

    async def _stop(self) -> None:
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._running
        await asyncio.gather(*(pod.close() for pod in self._pods.values()))

    async def _lose(self, name: str, kill: bool) -> None:
        self._lost.add(name)
        registry = self._server.registry
        lost = [pod for pod in self._pods.values() if pod.pod["spec"]["nodeName"] == name]
        for pod in lost:
            pod.seen = False
        if kill:
            await asyncio.gather(*(pod.close() for pod in lost))
        node = registry.get(NODE, "", name)
        condition = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
        registry.set_status(NODE, node, node["status"] | {"conditions": [condition]})
        for each in registry.store.all(POD):
            if each["spec"].get("nodeName") == name:
                conditions = [
                    c | ({"status": "False"} if c["type"] == "Ready" else {})
                    for c in each["status"].get("conditions") or ()
                ]
                registry.set_status(POD, each, each["status"] | {"conditions": conditions})

    def _kill(self, pod: str, namespace: str, container: str, reason: str) -> None:
        self._server.thread.do(lambda: self._find(pod, namespace).container(container).kill(reason))

    def _find(self, name: str, namespace: str) -> _Pod:
        for pod in self._pods.values():
            metadata = pod.pod["metadata"]
            if (metadata["name"], metadata["namespace"]) == (name, namespace):
                return pod
        raise AssertionError(f"the kubelet does not run the pod {namespace}/{name}")

    def _log_of(self, namespace: str, pod: str, container: str, previous: bool) -> Path:
        return self._find(pod, namespace).container(container).log(previous=previous)


def _new_address() -> str:
    """Returns an address that no other pod of this machine has, as far as blocks of 250 last."""
    block, number = divmod(next(_ADDRESSES), 250)
    high, low = divmod((os.getpid() + block) % 32_000, 250)
    return f"127.{128 + high}.{low}.{number + 1}"


class _Pod:
    """One pod, from its assignment to the node until its end."""

    def __init__(self, pod: Object, kubelet: Kubelet, server: ApiServer, address: str) -> None:
        self.pod = pod
        self.seen = True  # False: the node is lost
        self._kubelet = kubelet
        self._server = server
        self._registry = server.registry
        self._address = address
        self._started_at = now()
        self._ended: Object | None = None  # the final phase, with its reason
        self._grace_s: int | None = None  # once it is deleted
        self._terminating: asyncio.Task[None] | None = None
        folder = kubelet.root / pod["metadata"]["uid"]
        self._token = self._new_token()
        self._files = PodFiles(
            self._with_address(pod),
            folder,
            server.store,
            authority=server.certificates.authority,
            token=self._token,
            claims=kubelet.root / "claims",
        )
        spec = pod["spec"]
        self._initial = [self._container(each) for each in spec.get("initContainers") or ()]
        self._containers = [self._container(each) for each in spec["containers"]]
        self._running = asyncio.create_task(self._run())

    # ---- the kubelet's interface

    def update(self, pod: Object, *, refresh: bool) -> None:
        """Follows a change of the object; `refresh` updates its volumes also."""
        self.pod = pod
        self._files.pod = self._with_address(pod)
        metadata = pod["metadata"]
        names.write(self._files.hosts, names.hosts(self._server.store, self._files.pod))
        if "deletionTimestamp" in metadata:
            grace_s = metadata["deletionGracePeriodSeconds"]
            if self._grace_s is None or grace_s < self._grace_s:
                self._grace_s = grace_s
                self._terminate(grace_s)
        elif refresh:
            with contextlib.suppress(NotReady):
                self._files.create(self._specs())

    def container(self, name: str) -> Container:
        containers = [*self._containers, *self._initial]
        return next(c for c in containers if name in ("", c.name))

    def rotate_token(self) -> None:
        self._server.access.revoke(self._token)
        self._token = self._new_token()
        self._files.write_service_account(self._token)

    async def evict(self, *, statuses: bool) -> None:
        self._ended = {
            "phase": "Failed",
            "reason": "Evicted",
            "message": "The node was low on resource: memory.",
        }
        await self._kill_all()
        self._event("Evicted", self._ended["message"], True)
        if not statuses:
            self._containers.clear()
        self._publish()

    def forget(self) -> None:
        """The object is gone: ends all processes."""
        self.seen = False
        self._terminating = asyncio.ensure_future(self.close())

    async def close(self) -> None:
        self.seen = False
        await self._kill_all()

    # ---- inside

    async def _run(self) -> None:
        policy = self.pod["spec"]["restartPolicy"]
        self._publish()
        if not await self._mounted():
            return
        for initial in self._initial:
            await initial.run("Never" if policy == "Never" else "OnFailure")
            if initial.exit_code != 0:
                self._end("Failed")
                return
        await asyncio.gather(*(container.run(policy) for container in self._containers))
        failed = any(container.exit_code != 0 for container in self._containers)
        self._end("Failed" if failed else "Succeeded")

    async def _mounted(self) -> bool:
        """Waits until all volumes are there; returns False if the pod is deleted before."""
        reported = ""
        while self._grace_s is None and self.seen:
            try:
                self._files.create(self._specs())
            except NotReady as missing:
                if str(missing) != reported:
                    reported = str(missing)
                    self._event("FailedMount", f"MountVolume.SetUp failed: {missing}", True)
                await asyncio.sleep(0.05)
            else:
                return True
        return False

    def _end(self, phase: str) -> None:
        if self._ended is None and self._grace_s is None:
            self._ended = {"phase": phase}
        self._publish()

    def _terminate(self, grace_s: int) -> None:
        if self._terminating is not None:
            self._terminating.cancel()
        self._terminating = asyncio.create_task(self._terminated(grace_s))

    async def _terminated(self, grace_s: int) -> None:
        """Ends the containers, and then removes the object."""
        containers = [*self._initial, *self._containers]
        await asyncio.gather(*(container.terminate(grace_s) for container in containers))
        await asyncio.wait({self._running})
        if not self.seen:
            return
        self._publish()
        key, metadata = key_of(POD, self.pod), self.pod["metadata"]
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
        with contextlib.suppress(Failure):  # it is gone already
            self._registry.delete(POD, key.namespace, key.name, options)
        shutil.rmtree(self._files.folder, ignore_errors=True)

    async def _kill_all(self) -> None:
        containers = [*self._initial, *self._containers]
        await asyncio.gather(*(container.terminate(0) for container in containers))
        await asyncio.wait({self._running})
        await asyncio.to_thread(kill_marked, self.pod["metadata"]["uid"])

    def _container(self, spec: Object) -> Container:
        return Container(
            spec,
            self._files,
            self._kubelet.node,
            variables=self._variables(),
            address=self._address,
            changed=self._publish,
            event=self._event,
        )

    def _variables(self) -> dict[str, str]:
        metadata = self.pod["metadata"]
        variables = {
            "HOSTNAME": metadata["name"],
            "KUBERNETES_SERVICE_HOST": HOST,
            "KUBERNETES_SERVICE_PORT": str(self._server.port),
            "FIRESTEEL_SERVICE_ACCOUNT_DIR": str(self._files.place(SERVICE_ACCOUNT)),
        }
        for service in self._server.store.all("Service", metadata["namespace"]):
            spec = service["spec"]
            if spec.get("clusterIP") not in (None, "None") and spec.get("ports"):
                prefix = service["metadata"]["name"].upper().replace("-", "_")
                variables[f"{prefix}_SERVICE_HOST"] = spec["clusterIP"]
                variables[f"{prefix}_SERVICE_PORT"] = str(spec["ports"][0]["port"])
        return variables

    def _new_token(self) -> str:
        account = self.pod["spec"]["serviceAccountName"]
        return self._server.token_of(self.pod["metadata"]["namespace"], account)

    def _specs(self) -> list[Object]:
        spec = self.pod["spec"]
        return [*(spec.get("initContainers") or ()), *spec["containers"]]

    def _with_address(self, pod: Object) -> Object:
        addresses = {"podIP": self._address, "podIPs": [{"ip": self._address}], "hostIP": HOST}
        return pod | {"status": pod["status"] | addresses}

    def _event(self, reason: str, message: str, warning: bool) -> None:
        if self.seen:
            self._registry.event(self.pod, reason, message, warning=warning)

    def _publish(self) -> None:
        """Writes the status of the pod, unless the node is lost."""
        if not self.seen:
            return
        current = self._server.store.get(key_of(POD, self.pod))
        if current is None or current["metadata"]["uid"] != self.pod["metadata"]["uid"]:
            return
        status = self._with_address(current)["status"] | self._status(current["status"])
        self._registry.set_status(POD, current, json.loads(json.dumps(status)))

    def _status(self, current: Object) -> dict[str, Any]:
        ready = bool(self._containers) and all(c.ready for c in self._containers)
        ready = ready and self._ended is None
        initialized = all(c.exit_code == 0 for c in self._initial)
        started = any("waiting" not in c.state or c.last_state for c in self._containers)
        phase = {"phase": "Running" if started else current["phase"]}
        holds = {
            "PodReadyToStartContainers": True,
            "Initialized": initialized,
            "ContainersReady": ready,
            "Ready": ready,
        }
        known = {c["type"]: c for c in current.get("conditions") or ()}
        conditions = [c for c in known.values() if c["type"] not in _OURS]
        for kind in _OURS:
            status = "True" if holds[kind] else "False"
            same = known.get(kind, {}).get("status") == status
            fresh = {"type": kind, "status": status, "lastTransitionTime": now()}
            conditions.append(known[kind] if same else fresh)
        return {
            **(self._ended or phase),
            "startTime": self._started_at,
            "conditions": conditions,
            "initContainerStatuses": [c.status for c in self._initial],
            "containerStatuses": [c.status for c in self._containers],
        }
