"""Clusters that are created, watched and deleted from the machine of their user."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

import firesteel
from firesteel.client.cli import main
from firesteel.client.kubernetes_cluster import KubernetesCluster, check_version
from firesteel.common.config import Configuration
from firesteel.errors import ClusterUnreachable, FiresteelError
from firesteel.kubernetes.access.kubeconfig import from_kubeconfig
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.cluster import Application, cluster_objects
from firesteel.kubernetes.cluster.deployed import (
    ClusterTaken,
    DeployedCluster,
    NoKubernetesCluster,
    Outcome,
    earlier_job,
)
from firesteel.kubernetes.errors import (
    Forbidden,
    KubernetesConfigurationError,
    Unavailable,
)
from firesteel.kubernetes.pods.labels import MAIN_CONTAINER
from firesteel.kubernetes.resources import DEPLOYMENTS, SERVICES, Object
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.kinds import BY_NAME
from tests.kubernetes.kubelet import Kubelet

IMAGE = "firesteel:1"
KINDS = ("Deployment", "Pod", "Service", "ConfigMap", "Secret", "Lease", "Role", "NetworkPolicy")


@pytest.fixture
def configured(api_server: ApiServer, tmp_path: Path) -> Callable[..., Configuration]:
    def configure(**values: str) -> Configuration:  # by key
        given = {
            "kubernetes.cluster-id": "orders",
            "kubernetes.container.image.ref": IMAGE,
            "kubernetes.config.file": str(api_server.kubeconfig),
            "kubernetes.client.start-timeout": "1 s",
            "security.enabled": "false",
        }
        return Configuration(given | values)

    return configure


@pytest.fixture
def cluster(configured: Callable[..., Configuration]) -> KubernetesCluster:
    return KubernetesCluster(configured())


@pytest.fixture
def kubelet(api_server: ApiServer, tmp_path: Path) -> Iterator[Kubelet]:
    with Kubelet(api_server, tmp_path / "pods") as kubelet:
        yield kubelet


def objects(server: ApiServer) -> list[Object]:
    return [each for kind in KINDS for each in server.objects(kind)]


async def create(server: ApiServer, resource: object, manifest: Object) -> None:
    async with KubernetesClient(from_kubeconfig([server.kubeconfig])) as client:
        await client.create(resource, manifest)  # type: ignore[arg-type]


def deployment(name: str) -> Object:
    labels = {"app": "theirs"}
    container = {"name": "main", "image": "theirs"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def test_a_deleted_cluster_leaves_nothing(
    api_server: ApiServer, cluster: KubernetesCluster
) -> None:
    cluster.create(Application())
    assert len(objects(api_server)) > 8
    cluster.delete(lambda text: None)
    assert not objects(api_server)
    with pytest.raises(NoKubernetesCluster, match="there is no cluster orders in namespace def"):
        cluster.delete(lambda text: None)
    cluster.create()
    assert objects(api_server), "the id can be used again"


def test_a_taken_id_says_by_what(api_server: ApiServer, cluster: KubernetesCluster) -> None:
    cluster.create(Application())
    before = [each["metadata"]["uid"] for each in objects(api_server)]
    with pytest.raises(ClusterTaken) as raised:
        cluster.create()
    assert f"a cluster of the job {cluster.job_id}" in str(raised.value)
    assert f"by Firesteel {firesteel.__version__}" in str(raised.value)
    assert [each["metadata"]["uid"] for each in objects(api_server)] == before, "it is untouched"


def test_a_deployment_of_others_keeps_its_name(
    api_server: ApiServer, cluster: KubernetesCluster
) -> None:
    asyncio.run(create(api_server, DEPLOYMENTS, deployment("orders")))
    with pytest.raises(ClusterTaken, match="does not belong to Firesteel"):
        cluster.create()
    with pytest.raises(NoKubernetesCluster):
        cluster.delete(lambda text: None)
    assert len(api_server.objects("Deployment")) == 1


def test_a_name_that_others_use_leaves_nothing(
    api_server: ApiServer, cluster: KubernetesCluster
) -> None:
    spec = {"ports": [{"port": 80}], "selector": {"app": "theirs"}}
    theirs = {"metadata": {"name": "orders-rest"}, "spec": spec}
    asyncio.run(create(api_server, SERVICES, theirs))
    with pytest.raises(ClusterTaken, match="Service orders-rest exists in namespace default"):
        cluster.create()
    (left,) = objects(api_server)
    assert left["metadata"]["name"] == "orders-rest"


def test_a_missing_permission_is_named_and_nothing_is_left(
    api_server: ApiServer, cluster: KubernetesCluster
) -> None:
    api_server.deny(verb="create", resource="networkpolicies")
    with pytest.raises(Forbidden) as raised:
        cluster.create()
    text = str(raised.value)
    assert "cannot create networkpolicies in namespace default" in text
    assert 'apiGroups: ["networking.k8s.io"]' in text and 'verbs: ["create"]' in text
    assert not objects(api_server)


def test_an_image_that_does_not_exist_is_shown(
    kubelet: Kubelet, cluster: KubernetesCluster
) -> None:
    kubelet.break_image(IMAGE, "manifest unknown")
    cluster.create()
    said: list[str] = []
    with pytest.raises(FiresteelError, match="manifest unknown") as raised:
        cluster.wait(said.append)
    assert "the masters of the cluster orders in namespace default do not serve" in str(
        raised.value
    )
    assert any(f"the image {IMAGE} of its pod: " in line and "Pull" in line for line in said)
    assert len(said) == len(set(said)), "each change is shown once"


def test_masters_that_crash_end_the_wait_with_their_log(
    kubelet: Kubelet, configured: Callable[..., Configuration], tmp_path: Path
) -> None:
    template = tmp_path / "template.yaml"
    command = f"[{sys.executable}, -c, \"print('no space left'); raise SystemExit(3)\"]"
    main = f"{{name: {MAIN_CONTAINER}, command: {command}}}"
    template.write_text(f"spec: {{containers: [{main}]}}")
    conf = configured(
        **{
            "kubernetes.pod-template-file.jobmanager": str(template),
            "kubernetes.client.start-timeout": "60 s",
        }
    )
    cluster = KubernetesCluster(conf)
    cluster.create()
    with pytest.raises(FiresteelError, match="ended with exit code 3") as raised:
        cluster.wait(lambda text: None)
    assert "no space left" in "\n".join(raised.value.__notes__)


def test_an_exceeded_quota_is_shown(api_server: ApiServer, cluster: KubernetesCluster) -> None:
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "0"}}}
    api_server.act(lambda registry: registry.create(BY_NAME["ResourceQuota"], "default", quota))
    cluster.create()
    with pytest.raises(FiresteelError, match="exceeded quota"):
        cluster.wait(lambda text: None)


def test_an_unreachable_api_server_is_named(
    api_server: ApiServer, configured: Callable[..., Configuration]
) -> None:
    cluster = KubernetesCluster(configured(), patience_s=0.5)
    api_server.go_away()
    try:
        with pytest.raises(Unavailable, match=api_server.url):
            cluster.state()
    finally:
        api_server.come_back()


def test_without_access_the_error_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    conf = Configuration({"kubernetes.cluster-id": "orders"})
    with pytest.raises(KubernetesConfigurationError, match="there is no access to Kubernetes"):
        KubernetesCluster(conf)


async def test_an_outcome_is_kept_and_outlives_the_cluster(
    api_server: ApiServer, configured: Callable[..., Configuration]
) -> None:
    async with KubernetesClient(from_kubeconfig([api_server.kubeconfig])) as client:
        deployed = DeployedCluster(client, "orders")
        ours = cluster_objects(configured())[0]
        await deployed.create([ours])
        assert await deployed.outcome() is None
        outcome = Outcome(status="FAILED", error="ValueError: no such file")
        await deployed.record(outcome)
        assert await deployed.outcome() == outcome
        with pytest.raises(ClusterTaken, match="has ended"):
            await deployed.create([ours])
        await deployed.delete()
        await deployed.gone()
        assert await deployed.outcome() is None
    (event,) = [e for e in api_server.objects("Event") if e["reason"] == "JobEnded"]
    assert (event["type"], event["message"]) == ("Warning", "FAILED: ValueError: no such file")


def test_the_job_of_an_earlier_cluster_is_not_run_again() -> None:
    created = {"metadata": {"creationTimestamp": "2026-01-01T00:00:10Z"}}
    created_ms = 1_767_225_610_000
    before = earlier_job("orders", created, status="FINISHED", end_ms=created_ms - 1)
    assert "which is FINISHED, and it is not run again" in before
    assert earlier_job("orders", created, status="FINISHED", end_ms=created_ms + 1) == ""
    assert earlier_job("orders", created, status="RUNNING", end_ms=0) == ""


def test_another_version_in_the_image_is_refused() -> None:
    class Other:
        address = "kubernetes://default/orders"

        def cluster_overview(self) -> object:
            return type("Overview", (), {"version": "0.0.1"})

    with pytest.raises(ClusterUnreachable) as raised:
        check_version(Other())  # type: ignore[arg-type]
    assert "has Firesteel 0.0.1" in str(raised.value)
    assert "firesteel==0.0.1" in str(raised.value)


def test_ctrl_c_says_what_keeps_running(
    api_server: ApiServer,
    kubelet: Kubelet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    configured: Callable[..., Configuration],
) -> None:
    kubelet.node.held = True  # the masters never start
    values = configured(**{"kubernetes.client.start-timeout": "5 min"}).to_dict()
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.setenv("FIRESTEEL_CONF_DIR", str(tmp_path))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-m", "firesteel", "cluster", "start", "-t", "kubernetes-session"],
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    signal.signal(signal.SIGINT, before)
    with process:
        try:
            assert process.stderr is not None
            assert "Pending" in process.stderr.readline(), "it shows the pod"
            process.send_signal(signal.SIGINT)
            said = process.stderr.read()
            assert process.wait() == 130
        finally:
            process.kill()
    stop = "firesteel cluster stop -t kubernetes-session -D kubernetes.cluster-id=orders"
    assert "the cluster orders in namespace default keeps running" in said and stop in said
    assert api_server.objects("Deployment")
    stopped = CliRunner().invoke(main, stop.split()[1:])
    assert stopped.exit_code == 0 and "Cluster stopped" in stopped.output
    assert not objects(api_server)
