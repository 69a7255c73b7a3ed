"""The ResourceManager's driver, with pods that run as processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from firesteel._proto.resource_manager_pb2 import Registered
from firesteel.common.config import Configuration, options
from firesteel.common.ids import Epoch, IdSource
from firesteel.common.resources import UNKNOWN
from firesteel.kubernetes.access.kubeconfig import from_kubeconfig
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.pods.labels import MAIN_CONTAINER
from firesteel.kubernetes.reflector.core import ReflectorSettings
from firesteel.kubernetes.resources import DEPLOYMENTS, PODS, RESOURCE_QUOTAS, Object
from resourcemanager.core import commands
from resourcemanager.core.core import SlotManager
from resourcemanager.core.events import (
    Connection,
    DriverImpeded,
    JobMasterRegistered,
    PreviousWorkersFound,
    Requirement,
    RequirementsDeclared,
    WorkerDelayed,
    WorkerEvent,
    WorkerExited,
    WorkerId,
    WorkerStarted,
    WorkerStartFailed,
)
from resourcemanager.core.settings import Settings
from resourcemanager.kubernetes.driver import KubernetesDriver
from resourcemanager.kubernetes.settings import kubernetes_settings
from resourcemanager.peers import Peer
from resourcemanager.shell import Shell
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.faults import Fault
from tests.kubernetes.kubelet import Kubelet
from tests.slot_manager import WORKER, job_id
from tests.waiting import until

ONE, TWO, THREE = WorkerId("worker-1"), WorkerId("worker-2"), WorkerId("worker-3")
FOREVER = "import time; print('running'); time.sleep(3600)"
CRASH = "print('no Java found'); raise SystemExit(3)"
IMAGE = "firesteel:1"
REFLECTOR = ReflectorSettings(watch_timeout_s=5, silence_s=1.0, first_pause_s=0.05)

E = TypeVar("E", WorkerDelayed, WorkerStarted, WorkerStartFailed, WorkerExited)


class Driver:
    """A driver and the events that it posts."""

    def __init__(self, driver: KubernetesDriver) -> None:
        self.driver = driver
        self.events: list[WorkerEvent] = []

    def request(self, *workers: WorkerId) -> None:
        for worker in workers:
            self.driver.request_worker(worker)

    def release(self, worker: WorkerId, *, failed: bool = False) -> None:
        self.driver.release_worker(worker, "the test releases it", failed=failed)

    async def heard(self, kind: type[E], worker: WorkerId, contains: str = "") -> E:
        """Waits for an event of the worker whose text contains this."""

        def found() -> E | None:
            for event in self.events:
                if isinstance(event, kind) and event.worker_id == worker:
                    text = getattr(event, "cause", "") or getattr(event, "problem", "")
                    if contains in text:
                        return event
            return None

        await until(found, lambda: f"{kind.__name__} of {worker}: {contains}; {self.events}")
        event = found()
        assert event is not None
        return event

    def name_of(self, worker: WorkerId) -> str:
        return self.driver.core.workers[worker].name


def new_driver(
    api_server: ApiServer, directory: Path, code: str, **values: Any
) -> KubernetesDriver:
    """Returns a driver whose pods run Python code."""
    directory.mkdir()
    probe = {"exec": {"command": ["true"]}}
    main = {"name": MAIN_CONTAINER, "command": [sys.executable, "-uc", code]}
    main |= dict.fromkeys(("startupProbe", "readinessProbe", "livenessProbe"), probe)
    template = directory / "template.yaml"
    template.write_text(yaml.safe_dump({"spec": {"containers": [main]}}))
    given = {
        options.KUBERNETES_CLUSTER_ID.key: "orders",
        options.KUBERNETES_IMAGE.key: IMAGE,
        options.KUBERNETES_OWNER.key: "none",
        options.SECURITY_ENABLED.key: "false",
        options.KUBERNETES_TM_TEMPLATE.key: str(template),
        options.MAX_SLOTS.key: "10",
        options.TASK_SLOTS.key: "1",
    }
    return KubernetesDriver(
        kubernetes_settings(Configuration(given | values), initial_workers=0),
        from_kubeconfig([api_server.kubeconfig]),
        directory=directory,
        reflector=REFLECTOR,
    )


@pytest.fixture
def kubelet(api_server: ApiServer, tmp_path: Path) -> Iterator[Kubelet]:
    with Kubelet(api_server, tmp_path / "pods", nodes=("node-1", "node-2")) as kubelet:
        kubelet.node.probe_speed = 100
        yield kubelet


Start = Callable[..., Awaitable[Driver]]


@pytest.fixture
async def start(api_server: ApiServer, kubelet: Kubelet, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts drivers."""
    drivers: list[Driver] = []

    async def started(code: str = FOREVER, *, epoch: int = 1, **values: Any) -> Driver:
        directory = tmp_path / f"rm-{len(drivers)}"
        driver = new_driver(api_server, directory, code, **values)
        running = Driver(driver)
        drivers.append(running)
        driver.start("rm:6124", running.events.append, Epoch(epoch))
        return running

    yield started
    for running in drivers:
        await running.driver.stop()


@pytest.fixture
async def client(api_server: ApiServer) -> AsyncIterator[KubernetesClient]:
    async with KubernetesClient(from_kubeconfig([api_server.kubeconfig])) as client:
        yield client


async def pods(client: KubernetesClient) -> list[Object]:
    return (await client.list(PODS)).items


async def runs(client: KubernetesClient, name: str) -> None:
    """Waits until the process of a pod has printed its first line."""
    async with asyncio.timeout(60):
        while True:
            found = await client.get(PODS, name)
            if found["status"]["phase"] == "Running" and await client.pod_log(name):
                return
            await asyncio.sleep(0.02)


async def test_a_worker_is_created_and_released(
    start: Start, api_server: ApiServer, client: KubernetesClient
) -> None:
    driver = await start(epoch=4)
    driver.request(ONE, TWO)
    await driver.heard(WorkerStarted, ONE)
    await driver.heard(WorkerStarted, TWO)
    created = [p["metadata"]["name"] for p in await pods(client)]
    assert created == ["orders-taskexecutor-4-1", "orders-taskexecutor-4-2"]
    await runs(client, created[0])
    driver.release(ONE)
    await driver.heard(WorkerExited, ONE)
    await until(lambda: len(driver.driver.core.by_name) == 1, "its pod is gone")
    assert [p["metadata"]["name"] for p in await pods(client)] == created[1:]
    assert api_server.requests.count("create pods") == 2
    assert api_server.requests.count("delete pods") == 1


async def test_pods_are_owned_by_the_deployment(start: Start, client: KubernetesClient) -> None:
    driver = await start(**{"kubernetes.owner": ""})
    driver.request(ONE)
    await until(lambda: DriverImpeded(problem="") not in driver.events and driver.events)
    (impeded,) = driver.events
    assert isinstance(impeded, DriverImpeded) and "Deployment orders" in impeded.problem
    labels = {"app": "jobmanager"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    owner = await client.create(DEPLOYMENTS, {"metadata": {"name": "orders"}, "spec": spec})
    await driver.heard(WorkerStarted, ONE)
    (created,) = await pods(client)
    assert created["metadata"]["ownerReferences"][0]["uid"] == owner["metadata"]["uid"]
    await client.delete(DEPLOYMENTS, "orders")
    exited = await driver.heard(WorkerExited, ONE)
    assert "deleted" in exited.cause


async def test_a_new_attempt_adopts_live_pods_and_deletes_ended_ones(
    start: Start, kubelet: Kubelet, api_server: ApiServer, client: KubernetesClient
) -> None:
    earlier = await start(epoch=1)
    earlier.request(ONE, TWO)
    for worker in (ONE, TWO):
        await earlier.heard(WorkerStarted, worker)
        await runs(client, earlier.name_of(worker))
    names = {worker: earlier.name_of(worker) for worker in (ONE, TWO)}
    task = earlier.driver._task
    assert task is not None
    task.cancel()  # as by SIGKILL
    kubelet.kill(names[TWO])
    await until(
        lambda: any(p["status"]["phase"] == "Failed" for p in api_server.objects("Pod")),
        "the pod has failed",
    )
    later = await start(epoch=2)
    await until(lambda: PreviousWorkersFound(worker_ids=(ONE,)) in later.events, "it is adopted")
    await until(lambda: len(api_server.objects("Pod")) == 1, "the ended pod is deleted")
    later.request(THREE)
    await later.heard(WorkerStarted, THREE)
    assert later.name_of(THREE) == "orders-taskexecutor-2-1"
    later.release(ONE, failed=True)
    await later.heard(WorkerExited, ONE)


async def test_an_exceeded_quota_is_the_reason(start: Start, client: KubernetesClient) -> None:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}}
    await client.create(RESOURCE_QUOTAS, quota)
    driver = await start()
    driver.request(ONE)
    await driver.heard(WorkerStarted, ONE)
    driver.request(TWO)
    failed = await driver.heard(WorkerStartFailed, TWO)
    assert "exceeded quota: q" in failed.cause


async def test_a_broken_image_is_the_reason_until_it_is_repaired(
    start: Start, kubelet: Kubelet
) -> None:
    kubelet.break_image(IMAGE, "manifest unknown")
    driver = await start()
    driver.request(ONE)
    await driver.heard(WorkerDelayed, ONE, "ErrImagePull: manifest unknown")
    kubelet.repair_image(IMAGE)
    await until(
        lambda: driver.events[-1] == WorkerDelayed(worker_id=ONE, problem=""),
        lambda: str(driver.events),
    )


async def test_a_crash_is_reported_with_the_log(
    start: Start, api_server: ApiServer, tmp_path: Path
) -> None:
    driver = await start(CRASH)
    driver.request(ONE)
    exited = await driver.heard(WorkerExited, ONE)
    assert "with exit code 3: no Java found" in exited.cause.splitlines()[0]
    assert exited.cause.splitlines()[-1].strip() == "no Java found"
    await until(lambda: not api_server.objects("Pod"), "the pod is deleted")
    (logs,) = driver.driver.logs()
    assert logs.worker_id == ONE and logs.paths[0].read_text() == "no Java found\n"


async def test_an_oom_kill_is_reported_with_the_limit(
    start: Start, kubelet: Kubelet, client: KubernetesClient
) -> None:
    driver = await start()
    driver.request(ONE)
    await driver.heard(WorkerStarted, ONE)
    name = driver.name_of(ONE)
    await runs(client, name)
    limit = (await client.get(PODS, name))["spec"]["containers"][0]["resources"]["limits"]["memory"]
    kubelet.oom_kill(name)
    exited = await driver.heard(WorkerExited, ONE)
    assert f"memory limit of {limit} (OOMKilled)" in exited.cause
    assert "running" in exited.cause


@pytest.mark.parametrize("statuses", [True, False])
async def test_an_eviction_is_reported(
    start: Start, kubelet: Kubelet, client: KubernetesClient, statuses: bool
) -> None:
    driver = await start()
    driver.request(ONE)
    await driver.heard(WorkerStarted, ONE)
    await runs(client, driver.name_of(ONE))
    kubelet.evict(driver.name_of(ONE), statuses=statuses)
    exited = await driver.heard(WorkerExited, ONE)
    assert "was evicted from node node-" in exited.cause
    assert "low on resource: memory" in exited.cause


async def test_a_lost_node_is_reported(
    start: Start, kubelet: Kubelet, client: KubernetesClient
) -> None:
    driver = await start()
    driver.request(ONE)
    await driver.heard(WorkerStarted, ONE)
    name = driver.name_of(ONE)
    await runs(client, name)
    node = (await client.get(PODS, name))["spec"]["nodeName"]
    await until(lambda: driver.driver.core.workers[ONE].pod is not None)
    kubelet.lose_node(node)
    kubelet.evict_from_lost_node(node)
    exited = await driver.heard(WorkerExited, ONE)
    assert node in exited.cause
    driver.request(TWO)
    await driver.heard(WorkerStarted, TWO)
    await runs(client, driver.name_of(TWO))
    assert (await client.get(PODS, driver.name_of(TWO)))["spec"]["nodeName"] != node
    kubelet.remove_node(node)
    await until(lambda: name not in driver.driver.core.by_name, "the pod is gone")


async def test_an_unschedulable_pod_is_the_reason(start: Start) -> None:
    driver = await start(**{"kubernetes.taskmanager.node-selector": "zone:nowhere"})
    driver.request(ONE)
    await driver.heard(WorkerDelayed, ONE, "0/2 nodes are available: 2 node(s) didn't match")


async def test_pauses_of_the_api_server_delay_a_worker(start: Start, api_server: ApiServer) -> None:
    api_server.fail(Fault(verb="create", resource="pods", times=2, code=429, retry_after_s=1))
    driver = await start()
    driver.request(ONE)
    await driver.heard(WorkerDelayed, ONE, "429")
    await driver.heard(WorkerStarted, ONE)
    assert api_server.requests.count("create pods") == 3


async def test_a_lost_answer_creates_no_second_pod(
    start: Start, api_server: ApiServer, client: KubernetesClient
) -> None:
    api_server.fail(Fault(verb="create", resource="pods", lose_answer=True))
    driver = await start()
    driver.request(ONE)
    await driver.heard(WorkerStarted, ONE)
    assert [p["metadata"]["name"] for p in await pods(client)] == ["orders-taskexecutor-1-1"]


async def test_deaths_are_noticed_although_watches_break(
    start: Start, api_server: ApiServer, kubelet: Kubelet, client: KubernetesClient
) -> None:
    driver = await start()
    driver.request(ONE, TWO)
    for worker in (ONE, TWO):
        await driver.heard(WorkerStarted, worker)
        await runs(client, driver.name_of(worker))
    api_server.drop_watches()
    kubelet.kill(driver.name_of(ONE))
    await driver.heard(WorkerExited, ONE)
    api_server.go_away()
    kubelet.kill(driver.name_of(TWO))
    api_server.compact()
    api_server.come_back()
    await driver.heard(WorkerExited, TWO)


async def test_a_pod_that_a_user_deletes_is_reported(
    start: Start, client: KubernetesClient
) -> None:
    driver = await start()
    driver.request(ONE)
    await driver.heard(WorkerStarted, ONE)
    await runs(client, driver.name_of(ONE))
    await client.delete(PODS, driver.name_of(ONE))
    exited = await driver.heard(WorkerExited, ONE)
    assert "deleted" in exited.cause


async def test_pods_without_an_owner_end_with_the_driver(
    start: Start, api_server: ApiServer
) -> None:
    driver = await start()
    driver.request(ONE)
    await driver.heard(WorkerStarted, ONE)
    await driver.driver.stop()
    deleted = [p for p in api_server.objects("Pod") if "deletionTimestamp" not in p["metadata"]]
    assert deleted == []


# ---- with the SlotManager


@pytest.mark.parametrize(
    ("code", "image_is_broken", "reason"),
    [
        (FOREVER, True, "1 TaskExecutor is starting (the image firesteel:1 of its pod: ErrImage"),
        (CRASH, False, "the last TaskExecutor did not start (its pod orders-taskexecutor-"),
        (FOREVER, False, "the last TaskExecutor did not start (it did not register in time)"),
    ],
)
async def test_a_job_that_waits_for_slots_learns_why(
    api_server: ApiServer,
    kubelet: Kubelet,
    tmp_path: Path,
    code: str,
    image_is_broken: bool,
    reason: str,
) -> None:
    if image_is_broken:
        kubelet.break_image(IMAGE)
    start_timeout_s = 60.0 if image_is_broken else 5.0
    settings = Settings(
        epoch=Epoch(1), max_slots=2, worker=WORKER, worker_start_timeout_s=start_timeout_s
    )
    driver = new_driver(api_server, tmp_path / "rm", code)
    shell = Shell(SlotManager(settings, IdSource(b"test")), driver)
    explanations: list[str] = []

    def encode(command: commands.ToPeer) -> Registered:
        if isinstance(command, commands.NotEnoughResources):
            explanations.append(command.explanation)
        return Registered()

    job, connection = job_id("job"), Connection(1)
    shell.peers[connection] = Peer(connection, "job", encode)
    running = asyncio.create_task(shell.run("rm:6124"))
    shell.post(
        JobMasterRegistered(
            connection=connection, job_id=job, epoch=Epoch(1), address="jm:1", job_name="job"
        )
    )
    shell.post(
        RequirementsDeclared(
            connection=connection,
            job_id=job,
            epoch=Epoch(1),
            sequence=1,
            requirements=(Requirement(profile=UNKNOWN, count=1),),
        )
    )
    await until(lambda: any(reason in text for text in explanations), lambda: str(explanations))
    if not image_is_broken:  # it is replaced
        await until(lambda: api_server.requests.count("create pods") >= 2, "another pod")
    shell.stop()
    await running
    await shell.close()
