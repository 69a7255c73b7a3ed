"""The core of the Kubernetes driver, with a real reflector's core, against a simulated API server.

Requests fail, or their answers are lost; the API server is down for minutes; watches break, end, go
silent or are forgotten; pods die, are evicted, or are deleted by users, also before any watch shows
them; ResourceManagers fail over while requests are under way. A seed decides everything.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any, TypeVar

from firesteel.common.service.core import Tick
from firesteel.kubernetes.pods.labels import MAIN_CONTAINER
from firesteel.kubernetes.reflector import core as reflecting
from firesteel.kubernetes.reflector.core import ReflectorCore, ReflectorSettings
from firesteel.kubernetes.resources import Object
from resourcemanager.core.events import (
    PreviousWorkersFound,
    WorkerDelayed,
    WorkerEvent,
    WorkerExited,
    WorkerId,
    WorkerLeaving,
    WorkerLogRead,
    WorkersOutdated,
    WorkerStarted,
    WorkerStartFailed,
)
from resourcemanager.kubernetes import core as deciding
from resourcemanager.kubernetes.core import PodsCore, PodsSettings
from resourcemanager.kubernetes.pod import read_pod

C = TypeVar("C", deciding.CreatePod, deciding.DeletePod)

PODS_MAX = 12
FAULTS_S = 600.0  # then nothing fails any more
QUIET_S = 400.0  # enough for all pauses and deadlines
COMPARE_S = 10.0
GRACE_S = 10  # of pods
REFLECTOR = ReflectorSettings(watch_timeout_s=30, silence_s=5.0, stale_after_s=120.0)


class PodsSimulation:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.faulty = True
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        # the API server
        self.pods: dict[str, Object] = {}
        self.history: list[tuple[bool, Object]] = []  # whether it is a deletion; in versions' order
        self.down_until = 0.0
        # the SlotManager
        self.wanted = 0
        self.workers: set[WorkerId] = set()
        self.leaving: set[WorkerId] = set()
        self.ends: set[tuple[int, WorkerId]] = set()  # with the attempt that reported it
        self.numbers = itertools.count(1)
        # the driver
        self.attempt = 0
        self.template = "template-0"  # of the pods that it creates
        self.late: set[str] = set()  # pods that an earlier attempt created after its end
        self.take_office()

    # ---- time

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + seconds, next(self._count), action))

    def soon(self, action: Callable[[], None], longest_s: float = 0.3) -> None:
        self.after(self.random.uniform(0.001, longest_s), action)

    def run_until(self, end: float) -> None:
        while True:
            due = [
                (deadline, tick)
                for core, tick in self.cores()
                if (deadline := core.next_deadline()) is not None
            ]
            deadline, tick = min(due, key=lambda each: each[0], default=(end, lambda: None))
            first = self._heap[0][0] if self._heap else end
            if min(deadline, first) >= end:
                self.now = end
                return
            if deadline < first:
                self.now = max(self.now, deadline)
                tick()
            else:
                self.now, _, action = heapq.heappop(self._heap)
                action()
            self.check()

    def cores(self) -> list[tuple[Any, Callable[[], None]]]:
        """Returns the cores, with what each does at its deadline."""
        return [
            (self.pods_core, lambda: self.decide(Tick())),
            (self.reflector, lambda: self.reflect(Tick())),
        ]

    def chance(self, probability: float) -> bool:
        return self.faulty and self.random.random() < probability

    @property
    def down(self) -> bool:
        return self.now < self.down_until

    # ---- the driver

    def take_office(self) -> None:
        """Another ResourceManager leads."""
        self.attempt += 1
        self.pods_core = PodsCore(
            PodsSettings(
                cluster_id="c",
                attempt=self.attempt,
                pods_max=PODS_MAX,
                rate_per_s=20.0,
                burst=5,
                concurrency=4,
                template=self.template,
            )
        )
        self.workers.clear()
        self.leaving.clear()
        self.new_reflector()
        self.after(COMPARE_S, lambda attempt=self.attempt: self.compare(attempt))  # type: ignore[misc]

    def new_reflector(self) -> None:
        self.reflector = ReflectorCore(REFLECTOR, self.now)
        self.watch = (0, 0, True)  # number, position in the history, silent

    def compare(self, attempt: int) -> None:
        if attempt != self.attempt:
            return
        if self.reflector.synced:
            self.observe(set(self.reflector.objects), complete=True)
        self.after(COMPARE_S, lambda: self.compare(attempt))

    def observe(self, names: set[str], *, complete: bool) -> None:
        objects = self.reflector.objects
        pods = {n: read_pod(objects[n]) if n in objects else None for n in sorted(names)}
        current_at = self.now - self.reflector.age_s(self.now)
        self.decide(deciding.PodsObserved(pods=pods, complete=complete, current_at=current_at))

    def decide(self, event: deciding.Event) -> None:
        for command in self.pods_core.handle(event, self.now).commands:
            match command:
                case deciding.Report(event=report):
                    self.hear(report)
                case deciding.CreatePod():
                    self.request(command, self.create)
                case deciding.DeletePod():
                    self.request(command, self.delete)
                case deciding.InspectPod(name=name, ended=ended):
                    inspected = deciding.PodInspected(name=name, ended=ended, log="log")
                    if not self.chance(0.1):
                        self.soon(self.to_driver(inspected), 1.0)
        self.pods_core.validate()

    def to_driver(self, event: deciding.Event) -> Callable[[], None]:
        """Returns an action that delivers an answer, unless the driver has changed by then."""
        attempt = self.attempt
        return lambda: self.decide(event) if attempt == self.attempt else None

    def request(self, command: C, execute: Callable[[C], deciding.Event]) -> None:
        attempt, name = self.attempt, command.name
        creates = isinstance(command, deciding.CreatePod)

        def failed(executed: bool | None) -> deciding.Event:
            if creates:
                return deciding.PodPostponed(name=name, cause="fault", executed=executed)
            return deciding.PodNotDeleted(name=name, cause="fault")

        def answer(event: deciding.Event) -> None:
            self.soon(lambda: self.decide(event) if attempt == self.attempt else None)

        def arrive() -> None:
            if self.down or self.chance(0.1):
                answer(failed(self.random.choice((False, None))))
                return
            answered = execute(command)
            if creates and attempt != self.attempt:
                self.late.add(name)
            answer(failed(None) if self.chance(0.1) else answered)

        self.soon(arrive)

    # ---- the API server

    def put(self, pod: Object) -> None:
        metadata = pod["metadata"] | {"resourceVersion": str(len(self.history) + 1)}
        pod = pod | {"metadata": metadata}
        self.pods[metadata["name"]] = pod
        self.history.append((False, pod))

    def remove(self, name: str) -> None:
        pod = self.pods.pop(name)
        metadata = pod["metadata"] | {"resourceVersion": str(len(self.history) + 1)}
        self.history.append((True, pod | {"metadata": metadata}))

    def create(self, command: deciding.CreatePod) -> deciding.Event:
        found = self.pods.get(command.name)
        if found is not None:
            if found["metadata"]["labels"]["firesteel/worker-id"] == command.worker_id:
                return deciding.PodCreated(name=command.name, uid=found["metadata"]["uid"])
            return deciding.NameTaken(name=command.name)
        if self.chance(0.03):
            return deciding.PodRefused(name=command.name, cause="exceeded quota")
        attempt, number = command.name.split("-")[-2:]
        labels = {
            "firesteel/worker-id": command.worker_id,
            "firesteel/attempt": attempt,
            "firesteel/number": number,
            "firesteel/template": self.template,
        }
        uid = f"{command.name}/{next(self._count)}"
        metadata = {"name": command.name, "uid": uid, "labels": labels}
        self.put({"metadata": metadata, "spec": {}, "status": {"phase": "Pending"}})
        self.soon(lambda: self.set_status(uid, "Running"), 5.0)
        if self.chance(0.1):
            self.soon(lambda: self.vanish(uid), 0.2)
        return deciding.PodCreated(name=command.name, uid=uid)

    def delete(self, command: deciding.DeletePod) -> deciding.Event:
        found = self.pods.get(command.name)
        if found is None or command.uid not in ("", found["metadata"]["uid"]):
            return deciding.PodDeleted(name=command.name, uid=command.uid, gone=True)
        self.delete_gracefully(found)
        return deciding.PodDeleted(name=command.name, uid=command.uid)

    def delete_gracefully(self, pod: Object) -> None:
        if "deletionTimestamp" not in pod["metadata"]:
            times = {"deletionTimestamp": "now", "deletionGracePeriodSeconds": GRACE_S}
            self.put(pod | {"metadata": pod["metadata"] | times})
            uid = pod["metadata"]["uid"]
            self.after(GRACE_S, lambda: self.vanish(uid))

    def by_uid(self, uid: str) -> Object | None:
        return next((p for p in self.pods.values() if p["metadata"]["uid"] == uid), None)

    def vanish(self, uid: str) -> None:
        if (pod := self.by_uid(uid)) is not None:
            self.remove(pod["metadata"]["name"])

    def set_status(self, uid: str, phase: str, **status: Any) -> None:
        pod = self.by_uid(uid)
        if pod is None or pod["status"]["phase"] in ("Failed", "Succeeded"):
            return
        if phase == "Running":
            container = {"name": MAIN_CONTAINER, "state": {"running": {}}, "ready": True}
            status["containerStatuses"] = [container]
        self.put(pod | {"status": {"phase": phase} | status})

    @property
    def alive(self) -> list[Object]:
        return [
            pod
            for pod in self.pods.values()
            if pod["status"]["phase"] not in ("Failed", "Succeeded")
            and "deletionTimestamp" not in pod["metadata"]
        ]

    # ---- the reflector

    def reflect(self, event: reflecting.Event | Tick) -> None:
        reflector = self.reflector
        for command in reflector.handle(event, self.now).commands:
            match command:
                case reflecting.List(number=number):
                    self.soon(lambda n=number: self.list(n))  # type: ignore[misc]
                case reflecting.Watch(number=number, resource_version=version):
                    self.soon(lambda n=number, v=version: self.open_watch(n, int(v)))  # type: ignore[misc]
                case reflecting.Cancel():
                    self.watch = (0, 0, True)
                case reflecting.Notify(names=names):
                    complete = not self.pods_core.synced
                    self.observe(
                        set(reflector.objects) if complete else set(names), complete=complete
                    )
                case reflecting.Fail():
                    self.new_reflector()
                    return

    def list(self, number: int) -> None:
        if self.down or self.chance(0.1):
            failed = reflecting.ListFailed(number=number, reason="fault")
            self.soon(lambda: self.reflect(failed))
            return
        listed = reflecting.Listed(
            number=number,
            objects=list(self.pods.values()),
            resource_version=str(len(self.history)),
        )
        self.soon(lambda: self.reflect(listed))

    def open_watch(self, number: int, version: int) -> None:
        if self.down or self.chance(0.1):
            self.reflect(reflecting.WatchFailed(number=number, reason="fault"))
        elif self.chance(0.1):
            self.reflect(reflecting.WatchGone(number=number))
        else:
            self.watch = (number, version, self.chance(0.1))
            self.reflect(reflecting.WatchOpened(number=number))
            self.after(float(REFLECTOR.watch_timeout_s), lambda: self.end_watch(number))
            self.deliver(number)

    def end_watch(self, number: int) -> None:
        if self.watch[0] == number and not self.watch[2]:
            self.watch = (0, 0, True)
            self.reflect(reflecting.WatchEnded(number=number))

    def deliver(self, number: int) -> None:
        """Sends all changes that the watch has not seen."""
        if self.watch[0] != number:
            return
        if self.down or self.chance(0.005):
            self.watch = (0, 0, True)
            self.reflect(reflecting.WatchFailed(number=number, reason="broken"))
            return
        while self.watch[0] == number and not self.watch[2]:
            _, position, _ = self.watch
            if position >= len(self.history):
                bookmark = reflecting.Bookmarked(number=number, resource_version=str(position))
                self.reflect(bookmark)
                break
            deleted, pod = self.history[position]
            self.watch = (number, position + 1, False)
            kind = reflecting.ObjectDeleted if deleted else reflecting.ObjectChanged
            self.reflect(kind(number=number, object=pod))
        self.soon(lambda: self.deliver(number), 0.5)

    # ---- the SlotManager

    def hear(self, event: WorkerEvent) -> None:
        match event:
            case PreviousWorkersFound(worker_ids=worker_ids):
                self.workers |= set(worker_ids)
            case WorkerStarted() | WorkerDelayed() | WorkersOutdated() | WorkerLogRead():
                pass
            case WorkerLeaving(worker_id=worker_id):
                self.workers.discard(worker_id)  # another one is needed
                self.leaving.add(worker_id)
            case WorkerExited(worker_id=worker_id) | WorkerStartFailed(worker_id=worker_id):
                ended = (self.attempt, worker_id)
                assert ended not in self.ends, f"{worker_id} has ended twice"
                self.ends.add(ended)
                self.workers.discard(worker_id)
                self.leaving.discard(worker_id)
            case _:
                raise AssertionError(f"unexpected {event}")

    def scale(self) -> None:
        """Requests and releases workers, as a SlotManager that looks twice a second."""
        if self.pods_core.synced:
            while len(self.workers) < self.wanted:
                worker_id = WorkerId(f"worker-{next(self.numbers)}")
                self.workers.add(worker_id)
                self.decide(deciding.PodRequested(worker_id=worker_id))
                if worker_id not in self.workers:
                    break
            for worker_id in sorted(self.workers)[self.wanted :]:
                self.release(worker_id, failed=False)
        self.after(0.5, self.scale)

    def release(self, worker_id: WorkerId, *, failed: bool) -> None:
        self.workers.discard(worker_id)
        self.decide(deciding.PodReleased(worker_id=worker_id, failed=failed))

    # ---- faults

    def disturb(self) -> None:
        if not self.faulty:
            return
        self.after(self.random.uniform(0.5, 5.0), self.disturb)
        live = sorted(pod["metadata"]["uid"] for pod in self.alive)
        match self.random.randrange(12):
            case 0:
                self.down_until = self.now + self.random.choice((2.0, 20.0, 200.0))
            case 1:
                self.take_office()
            case 2 | 3:
                self.wanted = self.random.randrange(PODS_MAX + 1)
            case 4 if live:
                self.set_status(self.random.choice(live), "Failed")
            case 5 if live:
                self.set_status(self.random.choice(live), "Failed", reason="Evicted")
            case 6 if live:
                self.vanish(self.random.choice(live))
            case 7 if live:
                found = self.by_uid(self.random.choice(live))
                assert found is not None
                self.delete_gracefully(found)
            case 8 | 9 if self.workers:
                worker_id = self.random.choice(sorted(self.workers))
                self.release(worker_id, failed=True)
            case 10:
                self.watch = (self.watch[0], self.watch[1], True)
            case _:
                pass

    # ---- checkers

    def check(self) -> None:
        ours = [p for p in self.alive if p["metadata"]["name"] not in self.late]
        assert len(ours) <= PODS_MAX, f"at {self.now}: {len(ours)} pods"

    def check_rest(self) -> None:
        """Nothing is leaked and everything is there."""
        assert len(self.workers) == self.wanted
        held = sorted(pod["metadata"]["labels"]["firesteel/worker-id"] for pod in self.alive)
        assert held == sorted(self.workers)
        assert len(self.pods) == len(self.alive), "ended pods stay"
        assert set(self.pods_core.by_name) == set(self.pods)
        assert set(self.pods_core.workers) == self.workers


def simulate(seed: int) -> None:
    """Raises AssertionError unless workers and pods agree after all faults."""
    simulation = PodsSimulation(seed)
    simulation.wanted = 5
    simulation.scale()
    simulation.disturb()
    simulation.run_until(FAULTS_S)
    simulation.faulty, simulation.down_until = False, 0.0
    simulation.wanted = simulation.random.randrange(1, PODS_MAX + 1)
    simulation.run_until(FAULTS_S + QUIET_S)
    simulation.check_rest()
