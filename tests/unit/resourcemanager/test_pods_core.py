"""Which pods the Kubernetes driver creates, inspects and deletes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import pytest

from firesteel.common.service.core import Tick
from firesteel.kubernetes.pods.status import Life
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
from resourcemanager.kubernetes import core
from resourcemanager.kubernetes.core import Command, Event, PodsCore, PodsSettings
from resourcemanager.kubernetes.pod import Pod

C = TypeVar("C", bound=Command)
ONE, TWO, THREE = WorkerId("worker-1"), WorkerId("worker-2"), WorkerId("worker-3")


class Harness:
    """`now` moves only in `advance`; `commands` are those of the last verb."""

    def __init__(self, *pods: Pod, synced: bool = True, **settings: Any) -> None:
        given: dict[str, Any] = {"cluster_id": "orders", "attempt": 3, "pods_max": 100} | settings
        self.core = PodsCore(PodsSettings(**given))
        self.now = 100.0
        self.commands: list[Command] = []
        self.pods = {pod.name: pod for pod in pods}
        if synced:
            self.sync()

    def handle(self, *events: Event) -> None:
        self.commands = []
        for event in events:
            self.commands += self.core.handle(event, self.now).commands
            self.core.validate()

    def advance(self, seconds: float) -> None:
        until, seen = self.now + seconds, []
        while (deadline := self.core.next_deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.handle(Tick())
            seen += self.commands
        self.now, self.commands = until, seen

    def sync(self) -> None:
        self.handle(core.PodsObserved(pods=self.pods, complete=True, current_at=self.now))

    def request(self, *workers: WorkerId) -> None:
        self.handle(*(core.PodRequested(worker_id=worker) for worker in workers))

    def sent(self, kind: type[C]) -> list[C]:
        return [command for command in self.commands if isinstance(command, kind)]

    @property
    def reports(self) -> list[WorkerEvent]:
        return [report.event for report in self.sent(core.Report)]

    def start(self, worker: WorkerId) -> Pod:
        """Requests a worker, whose pod is created and runs."""
        self.request(worker)
        (create,) = self.sent(core.CreatePod)
        pod = pod_of(create)
        self.handle(core.PodCreated(name=pod.name, uid=pod.uid))
        self.see(pod)
        return pod

    def see(self, *pods: Pod) -> None:
        self.pods |= {pod.name: pod for pod in pods}
        self.handle(core.PodsObserved(pods={pod.name: pod for pod in pods}, current_at=self.now))

    def miss(self, pod: Pod) -> None:
        del self.pods[pod.name]
        self.handle(core.PodsObserved(pods={pod.name: None}, current_at=self.now))


def pod_of(create: core.CreatePod) -> Pod:
    return Pod(
        name=create.name,
        uid=f"uid of {create.name}",
        worker_id=create.worker_id,
        attempt=3,
        number=create.number,
        life=Life.RUNNING,
        has_log=True,
    )


def earlier(worker: WorkerId, attempt: int = 2, **facts: Any) -> Pod:
    name = f"orders-taskexecutor-{attempt}-1"
    given: dict[str, Any] = {"uid": f"uid of {worker}", "number": 1, "life": Life.RUNNING}
    given |= facts
    return Pod(name=name, worker_id=worker, attempt=attempt, **given)


def test_a_pod_from_its_request_to_its_end() -> None:
    k8s = Harness()
    k8s.request(ONE)
    name = "orders-taskexecutor-3-1"
    assert k8s.commands == [core.CreatePod(name=name, number=1, worker_id=ONE)]
    k8s.handle(core.PodCreated(name=name, uid="u"))
    assert k8s.reports == [WorkerStarted(worker_id=ONE)]
    pod = replace(earlier(ONE, attempt=3), uid="u")
    k8s.see(pod)
    assert k8s.commands == []
    k8s.handle(core.PodReleased(worker_id=ONE))
    assert [(c.name, c.uid) for c in k8s.sent(core.DeletePod)] == [(name, "u")]
    k8s.handle(core.PodDeleted(name=name))
    assert k8s.reports == []
    k8s.miss(pod)
    assert k8s.reports == [WorkerExited(worker_id=ONE, cause="it was released")]
    assert not k8s.core.workers and not k8s.core.by_name


def test_a_dead_pod_is_inspected_reported_and_deleted() -> None:
    k8s = Harness()
    pod = k8s.start(ONE)
    end = "reached its memory limit of 2Gi (OOMKilled)"
    k8s.see(replace(pod, life=Life.ENDED, end=end, out_of_memory=True))
    (inspect,) = k8s.commands
    assert isinstance(inspect, core.InspectPod) and inspect.log
    k8s.handle(core.PodInspected(name=pod.name, log="one\ntwo"))
    assert k8s.reports == [
        WorkerExited(
            worker_id=ONE,
            cause=f"its pod {pod.name} reached its memory limit of 2Gi (OOMKilled)\n"
            "The last lines of its log:\n  one\n  two",
            out_of_memory=True,
        )
    ]
    assert [c.name for c in k8s.sent(core.DeletePod)] == [pod.name]


def test_a_verdict_does_not_wait_for_a_slow_log() -> None:
    k8s = Harness()
    pod = k8s.start(ONE)
    k8s.see(replace(pod, life=Life.ENDED, end="ended with exit code 1"))
    k8s.advance(core.REASON_PATIENCE_S)
    (exited,) = k8s.reports
    assert isinstance(exited, WorkerExited) and "exit code 1" in exited.cause
    assert k8s.sent(core.DeletePod) == [], "its log is still read"
    k8s.advance(core.INSPECTION_S)
    assert [c.name for c in k8s.sent(core.DeletePod)] == [pod.name]
    k8s.handle(core.PodInspected(name=pod.name, log="late"))
    assert k8s.commands == []


def test_a_log_that_follows_the_verdict_is_reported() -> None:
    k8s = Harness()
    pod = k8s.start(ONE)
    k8s.see(replace(pod, life=Life.ENDED, end="ended with exit code 1"))
    k8s.advance(core.REASON_PATIENCE_S)
    k8s.handle(core.PodInspected(name=pod.name, log="no Java found"))
    log = "The last lines of its log:\n  no Java found"
    assert k8s.reports == [WorkerLogRead(worker_id=ONE, log=log)]


def test_an_evicted_pod_without_container_statuses_has_ended() -> None:
    k8s = Harness()
    pod = k8s.start(ONE)
    k8s.see(replace(pod, life=Life.ENDED, has_log=False, end="was evicted from node n"))
    (inspect,) = k8s.sent(core.InspectPod)
    assert inspect.events and not inspect.log
    k8s.handle(core.PodInspected(name=pod.name, events="Evicted: low on memory"))
    (exited,) = k8s.reports
    assert isinstance(exited, WorkerExited)
    assert exited.cause == f"its pod {pod.name} was evicted from node n; Evicted: low on memory"


def test_a_pod_that_someone_deletes_is_replaced_at_once() -> None:
    k8s = Harness(pods_max=1)
    pod = k8s.start(ONE)
    k8s.see(replace(pod, deleting=True, end="is deleted by someone else"))
    k8s.request(TWO)
    assert [c.worker_id for c in k8s.sent(core.CreatePod)] == [TWO], "it no longer counts"
    k8s.handle(core.PodInspected(name=pod.name))
    assert [type(event) for event in k8s.reports] == [WorkerExited]
    assert k8s.sent(core.DeletePod) == []


def leaving(pod: Pod) -> Pod:
    return replace(pod, deleting=True, leaving=True, grace_s=30.0, end="is deleted by a drain")


def test_a_pod_that_someone_deletes_has_its_grace_period_to_move_tasks() -> None:
    k8s = Harness(pods_max=1)
    pod = k8s.start(ONE)
    k8s.see(leaving(pod))
    cause = f"its pod {pod.name} is deleted by a drain"
    assert k8s.reports == [WorkerLeaving(worker_id=ONE, cause=cause)]
    k8s.request(TWO)
    assert [c.worker_id for c in k8s.sent(core.CreatePod)] == [TWO], "it no longer counts"
    k8s.see(leaving(pod))
    assert k8s.reports == []
    k8s.handle(core.PodReleased(worker_id=ONE))
    assert k8s.sent(core.DeletePod) == [], "it is deleted already"
    k8s.see(replace(leaving(pod), leaving=False, life=Life.ENDED))
    assert [type(event) for event in k8s.reports] == [WorkerExited]


def test_a_pod_whose_end_is_not_reported_after_its_grace_period_is_given_up() -> None:
    k8s = Harness()
    pod = k8s.start(ONE)
    k8s.see(leaving(pod))
    k8s.advance(30.0 + core.LEAVING_PATIENCE_S)
    (inspect,) = k8s.sent(core.InspectPod)
    k8s.handle(core.PodInspected(name=inspect.name))
    assert [type(event) for event in k8s.reports] == [WorkerExited]


def test_leaving_and_outdated_pods_are_reported_after_a_failover() -> None:
    live = replace(earlier(TWO, attempt=2), template="new")
    k8s = Harness(leaving(earlier(ONE, attempt=1)), live, template="new")
    assert k8s.reports == [
        PreviousWorkersFound(worker_ids=(ONE, TWO)),
        WorkersOutdated(worker_ids=(ONE,)),
        WorkerLeaving(worker_id=ONE, cause="its pod orders-taskexecutor-1-1 is deleted by a drain"),
    ]


def test_a_pod_created_and_gone_between_two_snapshots_does_not_block() -> None:
    k8s = Harness()
    k8s.request(ONE)
    (create,) = k8s.sent(core.CreatePod)
    k8s.handle(core.PodCreated(name=create.name, uid="u"))
    k8s.advance(core.UNSEEN_S / 2)
    k8s.sync()
    assert k8s.commands == [], "the snapshot may be older"
    k8s.advance(core.UNSEEN_S)
    k8s.sync()
    (exited,) = k8s.reports
    assert isinstance(exited, WorkerExited) and "vanished" in exited.cause
    assert k8s.core.alive == 0


def test_a_pod_that_vanishes_is_reported() -> None:
    k8s = Harness()
    k8s.miss(k8s.start(ONE))
    (exited,) = k8s.reports
    assert isinstance(exited, WorkerExited) and "someone deleted it" in exited.cause


def test_no_more_pods_than_the_limit() -> None:
    k8s = Harness(pods_max=2)
    k8s.request(ONE, TWO, THREE)
    assert len(k8s.sent(core.CreatePod)) == 2
    assert k8s.reports == [WorkerDelayed(worker_id=THREE, problem="the limit of 2 pods is reached")]
    first = pod_of(k8s.sent(core.CreatePod)[0])
    k8s.handle(core.PodCreated(name=first.name, uid=first.uid))
    k8s.handle(core.PodReleased(worker_id=ONE))
    assert k8s.sent(core.CreatePod) == [], "it is alive until the API server deletes it"
    k8s.handle(core.PodDeleted(name=first.name))
    assert [c.worker_id for c in k8s.sent(core.CreatePod)] == [THREE]


def test_requests_are_paced_and_concurrent() -> None:
    k8s = Harness(rate_per_s=10.0, burst=4, concurrency=3)
    k8s.request(*(WorkerId(f"worker-{n}") for n in range(10)))
    sent = k8s.sent(core.CreatePod)
    assert len(sent) == 3
    k8s.handle(*(core.PodCreated(name=each.name, uid=each.name) for each in sent))
    assert len(k8s.sent(core.CreatePod)) == 1, "the burst is used up"
    k8s.advance(0.25)
    assert len(k8s.sent(core.CreatePod)) == 2


def test_nothing_is_created_before_earlier_pods_are_known() -> None:
    k8s = Harness(earlier(TWO), synced=False, pods_max=2)
    k8s.request(ONE, THREE)
    assert k8s.commands == []
    k8s.sync()
    assert PreviousWorkersFound(worker_ids=(TWO,)) in k8s.reports
    assert [c.worker_id for c in k8s.sent(core.CreatePod)] == [ONE], "the earlier one counts"


def test_after_a_failover_ended_pods_are_deleted_and_live_ones_adopted() -> None:
    ended = replace(earlier(ONE, attempt=1), life=Life.ENDED)
    live = earlier(TWO, attempt=2)
    k8s = Harness(ended, live)
    assert k8s.reports == [PreviousWorkersFound(worker_ids=(TWO,))]
    assert [c.name for c in k8s.sent(core.DeletePod)] == [ended.name]
    k8s.handle(core.PodReleased(worker_id=TWO, failed=True))
    k8s.advance(core.STATUS_PATIENCE_S)
    (inspect,) = k8s.sent(core.InspectPod)
    k8s.handle(core.PodInspected(name=inspect.name))
    assert [c.name for c in k8s.sent(core.DeletePod)] == [live.name]


def test_names_are_not_used_again_by_a_restart_in_the_same_attempt() -> None:
    k8s = Harness(replace(earlier(ONE, attempt=3), number=7))
    k8s.request(TWO)
    assert [c.number for c in k8s.sent(core.CreatePod)] == [8]


def test_pods_of_a_newer_attempt_are_not_touched() -> None:
    newer = earlier(ONE, attempt=4)
    k8s = Harness(newer)
    k8s.see(newer)
    assert k8s.commands == []


def test_a_late_pod_of_an_earlier_leader_is_deleted() -> None:
    k8s = Harness()
    late = earlier(ONE, attempt=2)
    k8s.see(late)
    assert [c.name for c in k8s.sent(core.DeletePod)] == [late.name]
    k8s.miss(late)
    assert k8s.reports == []


def test_a_request_of_unknown_outcome_keeps_its_name() -> None:
    k8s = Harness(pods_max=1)
    k8s.request(ONE)
    (create,) = k8s.sent(core.CreatePod)
    k8s.handle(core.PodPostponed(name=create.name, cause="no answer", executed=None))
    assert k8s.reports == [WorkerDelayed(worker_id=ONE, problem="no answer")]
    assert k8s.core.alive == 1, "it may exist"
    k8s.advance(core.FIRST_PAUSE_S)
    assert k8s.sent(core.CreatePod) == [create]
    k8s.handle(core.PodCreated(name=create.name, uid="u"))
    assert WorkerStarted(worker_id=ONE) in k8s.reports


def test_a_released_request_of_unknown_outcome_is_deleted() -> None:
    k8s = Harness()
    k8s.request(ONE)
    (create,) = k8s.sent(core.CreatePod)
    k8s.handle(core.PodReleased(worker_id=ONE))
    assert k8s.commands == [], "the answer decides"
    k8s.handle(core.PodPostponed(name=create.name, cause="no answer", executed=None))
    assert [(c.name, c.uid) for c in k8s.sent(core.DeletePod)] == [(create.name, "")]
    k8s.handle(core.PodDeleted(name=create.name, gone=True))
    assert [type(event) for event in k8s.reports] == [WorkerExited]
    assert not k8s.core.by_name


def test_a_name_that_is_taken_is_replaced() -> None:
    k8s = Harness()
    k8s.request(ONE)
    (create,) = k8s.sent(core.CreatePod)
    k8s.handle(core.NameTaken(name=create.name))
    assert [(c.number, c.worker_id) for c in k8s.sent(core.CreatePod)] == [(2, ONE)]


def test_a_refusal_fails_all_that_wait_without_further_requests() -> None:
    k8s = Harness(concurrency=1)
    k8s.request(ONE, TWO, THREE)
    (create,) = k8s.sent(core.CreatePod)
    k8s.handle(core.PodRefused(name=create.name, cause="exceeded quota"))
    assert k8s.reports == [
        WorkerStartFailed(worker_id=worker, cause="exceeded quota") for worker in (ONE, TWO, THREE)
    ]
    assert k8s.sent(core.CreatePod) == []
    assert not k8s.core.workers


def test_a_pause_that_the_api_server_requests_holds_for_all() -> None:
    k8s = Harness()
    k8s.request(ONE)
    (create,) = k8s.sent(core.CreatePod)
    k8s.handle(core.PodPostponed(name=create.name, cause="429", retry_after_s=5.0))
    k8s.request(TWO)
    assert k8s.sent(core.CreatePod) == []
    k8s.advance(5.0)
    assert [c.worker_id for c in k8s.sent(core.CreatePod)] == [ONE, TWO]


@pytest.mark.parametrize("event", [core.PodCreated, core.PodRefused])
def test_a_worker_released_during_its_creation_ends_once(event: type) -> None:
    k8s = Harness()
    k8s.request(ONE)
    (create,) = k8s.sent(core.CreatePod)
    k8s.handle(core.PodReleased(worker_id=ONE))
    if event is core.PodCreated:
        k8s.handle(core.PodCreated(name=create.name, uid="u"))
        assert [c.name for c in k8s.sent(core.DeletePod)] == [create.name]
        k8s.handle(core.PodDeleted(name=create.name, uid="u", gone=True))
        assert [type(report) for report in k8s.reports] == [WorkerExited]
    else:
        k8s.handle(core.PodRefused(name=create.name, cause="quota"))
        assert [type(report) for report in k8s.reports] == [WorkerStartFailed]
    assert not k8s.core.workers and not k8s.core.by_name


def test_a_queued_worker_that_is_released_is_never_created() -> None:
    k8s = Harness(concurrency=1)
    k8s.request(ONE, TWO)
    (create,) = k8s.sent(core.CreatePod)
    k8s.handle(core.PodReleased(worker_id=TWO))
    assert [type(report) for report in k8s.reports] == [WorkerStartFailed]
    k8s.handle(core.PodCreated(name=create.name, uid="u"))
    assert k8s.sent(core.CreatePod) == []


def test_a_dead_worker_is_deleted_after_the_kubelet_has_reported_its_end() -> None:
    """The SlotManager knows a death from the broken connection, before the kubelet does."""
    k8s = Harness()
    pod = k8s.start(ONE)
    k8s.handle(core.PodReleased(worker_id=ONE, failed=True))
    assert k8s.commands == []
    k8s.see(replace(pod, life=Life.ENDED, end="reached its memory limit (OOMKilled)"))
    assert len(k8s.sent(core.InspectPod)) == 1
    k8s.handle(core.PodInspected(name=pod.name, log="last words"))
    (exited,) = k8s.reports
    assert isinstance(exited, WorkerExited)
    assert "OOMKilled" in exited.cause and "last words" in exited.cause


def test_a_deletion_is_requested_until_it_is_accepted() -> None:
    k8s = Harness()
    pod = k8s.start(ONE)
    k8s.handle(core.PodReleased(worker_id=ONE))
    k8s.handle(core.PodNotDeleted(name=pod.name, cause="503", retry_after_s=3.0))
    assert k8s.commands == []
    k8s.advance(3.0)
    assert [c.name for c in k8s.sent(core.DeletePod)] == [pod.name]
    k8s.handle(core.PodDeleted(name=pod.name))
    k8s.advance(60.0)
    assert k8s.commands == []


def test_problems_of_a_pod_are_reported_when_they_change() -> None:
    k8s = Harness()
    k8s.request(ONE)
    (create,) = k8s.sent(core.CreatePod)
    waits = replace(pod_of(create), life=Life.PENDING, has_log=False)
    k8s.handle(core.PodCreated(name=create.name, uid=waits.uid))
    k8s.see(replace(waits, problem="the image: ErrImagePull: no such tag"))
    assert k8s.reports == [
        WorkerDelayed(worker_id=ONE, problem="the image: ErrImagePull: no such tag")
    ]
    k8s.see(replace(waits, problem="the image: ImagePullBackOff: Back-off"))
    assert k8s.reports == [], "the reason stays"
    k8s.see(replace(waits, life=Life.RUNNING))
    assert k8s.reports == [WorkerDelayed(worker_id=ONE, problem="")]


def test_events_explain_a_pod_that_does_not_start() -> None:
    k8s = Harness()
    k8s.request(ONE, TWO)
    for create in k8s.sent(core.CreatePod):
        waits = replace(pod_of(create), life=Life.PENDING, has_log=False)
        k8s.handle(core.PodCreated(name=create.name, uid=waits.uid))
        k8s.see(waits)
    k8s.advance(core.STUCK_S)
    (inspect,) = k8s.sent(core.InspectPod)
    assert (inspect.log, inspect.events, inspect.ended) == (False, True, False)
    k8s.handle(
        core.PodInspected(name=inspect.name, ended=False, events="FailedMount: no such volume")
    )
    assert k8s.reports == [WorkerDelayed(worker_id=ONE, problem="FailedMount: no such volume")]
    k8s.see(replace(k8s.pods[inspect.name], node="n"))
    assert k8s.reports == [], "it still holds"


def test_a_repeated_request_may_create_a_pod_that_has_vanished() -> None:
    k8s = Harness(pods_max=1)
    k8s.request(ONE)
    (create,) = k8s.sent(core.CreatePod)
    k8s.handle(core.PodPostponed(name=create.name, cause="no answer", executed=None))
    k8s.advance(core.FIRST_PAUSE_S)
    assert k8s.sent(core.CreatePod) == [create]
    pod = pod_of(create)
    k8s.see(pod)
    k8s.miss(pod)
    assert [type(event) for event in k8s.reports] == [WorkerExited]
    k8s.request(TWO)
    assert k8s.sent(core.CreatePod) == [], "the request is under way"
    k8s.handle(core.PodCreated(name=create.name, uid="again"))
    assert [(c.name, c.uid) for c in k8s.sent(core.DeletePod)] == [(create.name, "again")]
    k8s.handle(core.PodDeleted(name=create.name))
    assert [c.worker_id for c in k8s.sent(core.CreatePod)] == [TWO]


def test_an_earlier_pod_of_the_same_name_is_not_confused_with_the_later_one() -> None:
    """The first request had created a pod that vanished; the watch shows it late."""
    k8s = Harness()
    k8s.request(ONE)
    (create,) = k8s.sent(core.CreatePod)
    k8s.handle(core.PodPostponed(name=create.name, cause="no answer", executed=None))
    k8s.advance(core.FIRST_PAUSE_S)
    k8s.handle(core.PodCreated(name=create.name, uid="second"))
    first, second = (replace(pod_of(create), uid=uid) for uid in ("first", "second"))
    k8s.see(first)
    k8s.miss(first)
    assert k8s.commands == []
    k8s.see(second)
    k8s.handle(core.PodReleased(worker_id=ONE))
    assert [c.uid for c in k8s.sent(core.DeletePod)] == ["second"]
    k8s.handle(core.PodDeleted(name=create.name, uid="first", gone=True))
    assert [c.uid for c in k8s.sent(core.DeletePod)] == ["second"]
