"""Sends the requests that `core` decides on, and reports the pods that the API server has."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, assert_never

from firesteel.common.backoff import Backoff
from firesteel.common.config import options
from firesteel.common.ids import Epoch
from firesteel.common.logs import get_logger
from firesteel.common.process.log_files import prune
from firesteel.common.service.core_loop import CoreLoop
from firesteel.errors import FiresteelError
from firesteel.kubernetes.access.cluster_access import ClusterAccess
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.errors import (
    AlreadyExists,
    Conflict,
    KubernetesError,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from firesteel.kubernetes.pods.labels import MAIN_CONTAINER
from firesteel.kubernetes.pods.template import owner_reference
from firesteel.kubernetes.reflector.core import ReflectorSettings
from firesteel.kubernetes.reflector.reflector import Reflector, ReflectorStale
from firesteel.kubernetes.resources import PODS, Object
from resourcemanager.core.events import (
    DriverImpeded,
    WorkerEvent,
    WorkerExited,
    WorkerId,
    WorkerStartFailed,
)
from resourcemanager.driver import WorkerLogs
from resourcemanager.kubernetes import core
from resourcemanager.kubernetes.core import Command, Event, PodsCore, PodsSettings
from resourcemanager.kubernetes.manifest import Manifests
from resourcemanager.kubernetes.pod import Pod, read_pod, selector
from resourcemanager.kubernetes.settings import KubernetesSettings

log = get_logger(__name__)

LOOK_INTERVAL_S = 10.0  # between comparisons with the whole snapshot
LATEST_CHANGE_S = 0.01  # changes that arrive within this time are handled together
# Kept of an ended pod. There is no limit on bytes: it would cut off the end.
LOG_LINES = 200
SHOWN_LINES = 10  # of them, in the reason of the end
EVENTS_SHOWN = 3
RETRY_FIRST_S = 0.5  # until the owner is read again
RETRY_MAX_S = 10.0
SILENT_S = 20.0  # a snapshot that is older than this impedes the driver
STOP_S = 10.0  # to delete the pods at the end


class KubernetesDriver:
    reason_patience_s = 0.5  # until the kubelet reports an end, and the log is read

    def __init__(
        self,
        settings: KubernetesSettings,
        access: ClusterAccess,
        *,
        directory: Path,
        logs_kept: int = options.LOG_MAX.default,
        reflector: ReflectorSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`directory` gets the logs of ended pods; `logs_kept` limits their number. Raises
        ConfigurationError if the pod template cannot be used.
        """
        self._settings = settings
        self._manifests = Manifests(settings)
        self._access = access
        self._logs = directory / "logs"
        self._logs_kept = logs_kept
        self._reflector_settings = reflector or ReflectorSettings()
        self._clock = clock
        self._address = ""
        self._post: Callable[[WorkerEvent], None] = lambda event: None
        self._epoch = 0
        self._owner: Object | None = None
        self._requests: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._age_s: Callable[[], float] | None = None  # of the snapshot
        self._changed: set[str] = set()  # names, to be read from the snapshot
        self._look: asyncio.TimerHandle | None = None
        self._impediment = ""
        self._inspections = asyncio.Semaphore(settings.concurrency)

    # ------------------------------------------------------------ the driver's interface

    def start(
        self, resource_manager_address: str, post: Callable[[WorkerEvent], None], epoch: Epoch
    ) -> None:
        self._address, self._post, self._epoch = resource_manager_address, post, epoch
        self.core = PodsCore(
            PodsSettings(
                cluster_id=self._settings.cluster_id,
                attempt=epoch,
                pods_max=self._settings.pods_max,
                rate_per_s=self._settings.rate_per_s,
                burst=max(self._settings.concurrency, 1),
                concurrency=self._settings.concurrency,
                template=self._manifests.template,
            )
        )
        self._core_loop: CoreLoop[Event, None, Command] = CoreLoop(
            self.core, execute=self._execute, clock=self._clock, name="pods"
        )
        self._client = KubernetesClient(self._access)
        self._task = asyncio.create_task(self._run(), name="pods of Kubernetes")
        self._task.add_done_callback(self._ended)

    def request_worker(self, worker_id: WorkerId) -> None:
        self._core_loop.post(core.PodRequested(worker_id=worker_id))

    def release_worker(self, worker_id: WorkerId, cause: str, *, failed: bool = False) -> None:
        log.info("releasing the pod of a TaskExecutor", worker_id=worker_id, cause=cause)
        self._core_loop.post(core.PodReleased(worker_id=worker_id, failed=failed))

    async def stop(self, *, end_workers: bool = True) -> None:
        """Pods with an owner stay: the next ResourceManager adopts them, and they are deleted with
        their owner.
        """
        self._post = lambda event: None
        if self._task is None:
            return
        task, self._task = self._task, None
        self._core_loop.stop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if self._look is not None:
            self._look.cancel()
        for request in self._requests:
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)
        if end_workers and self._settings.owner is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await self._delete_all()
        await self._client.close()

    def logs(self) -> Sequence[WorkerLogs]:
        """Returns the last lines of ended pods; live TaskExecutors serve their own logs."""
        return [
            WorkerLogs(worker_id=WorkerId(path.stem), task_executor_id="", paths=(path,))
            for path in self._logs.glob("*.log")
        ]

    def gauges(self) -> Mapping[str, float]:
        return {} if self._age_s is None else {"kubernetesPodsAge": self._age_s()}

    # ------------------------------------------------------------ its task

    async def _run(self) -> None:
        await self._find_owner()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._core_loop.run())
            group.create_task(self._follow())
            group.create_task(self._compare())

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("the driver of pods has failed", exc_info=error)
        self._impeded(f"the driver has failed: {error!r}")

    async def _find_owner(self) -> None:
        """Reads the object that owns the pods; waits until it exists."""
        owner = self._settings.owner
        pause = Backoff(RETRY_FIRST_S, RETRY_MAX_S)
        while owner is not None:
            try:
                found = await self._client.get(
                    owner.resource, owner.name, namespace=self._settings.namespace
                )
            except NotFound:
                self._impeded(
                    f"{owner.resource.kind} {owner.name}, the owner of the pods, does not exist"
                    f" in namespace {self._namespace}; see {options.KUBERNETES_OWNER.key}"
                )
            except FiresteelError as error:
                self._impeded(str(error))
            else:
                kind = {"apiVersion": owner.resource.api_version, "kind": owner.resource.kind}
                self._owner = owner_reference(kind | found)
                self._impeded("")
                return
            await asyncio.sleep(pause.next())

    async def _follow(self) -> None:
        """Follows the pods. A reflector that gives up is replaced."""
        while True:
            self._reflector = Reflector(
                self._client,
                PODS,
                namespace=self._settings.namespace,
                labels=selector(self._settings.cluster_id),
                settings=self._reflector_settings,
                on_change=self._note,
                clock=self._clock,
            )
            self._age_s = self._reflector.age_s
            try:
                await self._reflector.run()
            except ReflectorStale as error:
                self._impeded(str(error))

    async def _compare(self) -> None:
        """Compares the core with the whole snapshot, in case that a change was lost."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            self._report_age()
            if self._reflector.core.synced:
                self._observe(complete=True)

    def _report_age(self) -> None:
        problem = self._reflector.problem
        if problem and self._reflector.age_s() > SILENT_S:
            self._impeded(problem)
        elif not problem and self._reflector.core.synced:
            self._impeded("")

    def _impeded(self, problem: str) -> None:
        if problem != self._impediment:  # text only: the same report is not repeated
            self._impediment = problem
            self._post(DriverImpeded(problem=problem))

    @property
    def _namespace(self) -> str:
        return self._settings.namespace or self._client.namespace

    # ------------------------------------------------------------ the snapshot

    def _note(self, names: frozenset[str]) -> None:
        """Reads changes together: a thousand pods change several times each as they start."""
        if not self.core.synced:
            self._impeded("")
            self._observe(complete=True)
            return
        self._changed |= names
        if self._look is None:
            loop = asyncio.get_running_loop()
            self._look = loop.call_later(LATEST_CHANGE_S, self._observe_changes)

    def _observe_changes(self) -> None:
        self._look = None
        self._observe(complete=False)

    def _observe(self, *, complete: bool) -> None:
        snapshot = self._reflector.snapshot
        names = list(snapshot) if complete else list(self._changed)
        pods: dict[str, Pod | None] = {}
        for name in names:
            manifest = snapshot.get(name)
            pod = read_pod(manifest) if manifest is not None else None
            if manifest is None or pod is not None:
                pods[name] = pod
        self._changed.clear()
        current_at = self._clock() - self._reflector.age_s()
        self._core_loop.post(core.PodsObserved(pods=pods, complete=complete, current_at=current_at))

    # ------------------------------------------------------------ commands

    def _execute(self, command: Command) -> None:
        match command:
            case core.CreatePod():
                self._start(self._create(command))
            case core.InspectPod():
                self._start(self._inspect(command))
            case core.DeletePod():
                self._start(self._delete(command))
            case core.Report(event=event):
                if isinstance(event, WorkerStartFailed | WorkerExited):
                    log.info(
                        "the pod of a TaskExecutor has ended",
                        worker_id=event.worker_id,
                        cause=event.cause,
                    )
                self._post(event)
            case _:
                assert_never(command)

    def _start(self, request: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(request)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _create(self, command: core.CreatePod) -> None:
        self._core_loop.post(await self._created(command))

    async def _created(self, command: core.CreatePod) -> Event:
        name = command.name
        manifest = self._manifests.pod(
            name=name,
            attempt=self._epoch,
            number=command.number,
            worker_id=command.worker_id,
            resource_manager_address=self._address,
            owner=self._owner,
        )
        try:
            found = await self._client.create(
                PODS, manifest, namespace=self._settings.namespace, within_s=0
            )
        except AlreadyExists:
            return await self._existing(command)
        except TooManyRequests as error:
            return core.PodPostponed(name=name, cause=str(error), retry_after_s=error.retry_after_s)
        except Unavailable as error:
            return core.PodPostponed(
                name=name,
                cause=str(error),
                retry_after_s=error.retry_after_s,
                executed=error.executed,
            )
        except Unauthorized as error:  # the token is replaced, or the API server starts
            return core.PodPostponed(name=name, cause=str(error))
        except FiresteelError as error:
            log.warning("Kubernetes refuses a pod", pod=name, reason=str(error))
            return core.PodRefused(name=name, cause=str(error))
        log.info("pod created", pod=name, worker_id=command.worker_id)
        return core.PodCreated(name=name, uid=found["metadata"]["uid"])

    async def _existing(self, command: core.CreatePod) -> Event:
        """Whether an earlier request of unknown outcome has created the pod."""
        try:
            found = await self._client.get(
                PODS, command.name, namespace=self._settings.namespace, within_s=0
            )
        except FiresteelError as error:
            return core.PodPostponed(name=command.name, cause=str(error), executed=None)
        pod = read_pod(found)
        if pod is not None and pod.worker_id == command.worker_id:
            return core.PodCreated(name=command.name, uid=pod.uid)
        return core.NameTaken(name=command.name)

    async def _delete(self, command: core.DeletePod) -> None:
        name = command.name
        try:
            await self._client.delete(
                PODS, name, namespace=self._settings.namespace, uid=command.uid, within_s=0
            )
        except (NotFound, Conflict):  # another pod has its name
            self._core_loop.post(core.PodDeleted(name=name, uid=command.uid, gone=True))
        except FiresteelError as error:
            retry = error.retry_after_s if isinstance(error, TooManyRequests | Unavailable) else 0.0
            log.info("a pod is not deleted yet", pod=name, reason=str(error))
            self._core_loop.post(
                core.PodNotDeleted(name=name, cause=str(error), retry_after_s=retry)
            )
        else:
            log.info("pod deleted", pod=name, cause=command.cause)
            self._core_loop.post(core.PodDeleted(name=name, uid=command.uid))

    # ------------------------------------------------------------ reasons

    async def _inspect(self, command: core.InspectPod) -> None:
        async with self._inspections:
            read, events = await asyncio.gather(self._log(command), self._events(command))
        worker = self.core.by_name.get(command.name)
        if read:
            name = worker.worker_id if worker is not None else command.name
            await asyncio.to_thread(self._save, f"{name}.log", read)
        shown = "\n".join(read.splitlines()[-SHOWN_LINES:])
        self._core_loop.post(
            core.PodInspected(name=command.name, ended=command.ended, log=shown, events=events)
        )

    async def _log(self, command: core.InspectPod) -> str:
        if not command.log:
            return ""
        try:
            return await self._client.pod_log(
                command.name,
                namespace=self._settings.namespace,
                container=MAIN_CONTAINER,
                tail_lines=LOG_LINES,
                within_s=0,
            )
        except FiresteelError as error:
            log.info("the log of a pod cannot be read", pod=command.name, reason=str(error))
            return ""

    async def _events(self, command: core.InspectPod) -> str:
        if not command.events or not command.uid:
            return ""
        metadata = {"uid": command.uid, "namespace": self._namespace}
        try:
            found = await self._client.events_of({"metadata": metadata}, within_s=0)
        except KubernetesError as error:
            log.info("the Events of a pod cannot be read", pod=command.name, reason=str(error))
            return ""
        return _warnings(found)

    def _save(self, name: str, text: str) -> None:
        self._logs.mkdir(parents=True, exist_ok=True)
        (self._logs / name).write_text(text, encoding="utf-8")
        prune(self._logs, "*.log", self._logs_kept)

    # ------------------------------------------------------------ the end

    async def _delete_all(self) -> None:
        names = [w.name for w in self.core.by_name.values() if w.name]
        limit = asyncio.Semaphore(self._settings.concurrency)

        async def delete(name: str) -> None:
            async with limit:
                with contextlib.suppress(NotFound):
                    await self._client.delete(PODS, name, namespace=self._settings.namespace)

        done = await asyncio.gather(*map(delete, names), return_exceptions=True)
        for error in filter(None, done):
            log.warning("a pod is not deleted", reason=str(error))


def _warnings(events: Sequence[Mapping[str, Any]]) -> str:
    """Returns the texts of the last warnings, without repetitions."""
    texts: list[str] = []
    for event in events:
        if event.get("type") == "Warning" and event.get("message"):
            text = f"{event.get('reason', '')}: {event['message']}"
            if text not in texts:
                texts.append(text)
    return "; ".join(texts[-EVENTS_SHOWN:])
