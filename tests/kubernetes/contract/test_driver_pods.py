"""The API server accepts the pods of the ResourceManager's driver as they are meant."""

from __future__ import annotations

from pathlib import Path

from firesteel.common.config import Configuration, options
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.pods.labels import MAIN_CONTAINER
from firesteel.kubernetes.pods.status import Life
from firesteel.kubernetes.pods.template import owner_reference
from firesteel.kubernetes.resources import CONFIG_MAPS, PODS, SERVICE_ACCOUNTS
from resourcemanager.core.events import WorkerId
from resourcemanager.kubernetes.manifest import Manifests
from resourcemanager.kubernetes.pod import read_pod, selector
from resourcemanager.kubernetes.settings import kubernetes_settings

TEMPLATE = f"""
spec:
  priority: 0
  containers:
  - {{name: sidecar, image: proxy}}
  - name: {MAIN_CONTAINER}
    volumeMounts: [{{name: scratch, mountPath: /tmp}}]
  volumes: [{{name: scratch, emptyDir: {{}}}}]
"""


async def test_a_pod_with_all_options_is_accepted(client: KubernetesClient, tmp_path: Path) -> None:
    template = tmp_path / "template.yaml"
    template.write_text(TEMPLATE)
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "worker"}})
    owner = await client.create(CONFIG_MAPS, {"metadata": {"name": "owner"}})
    conf = Configuration(
        {
            options.KUBERNETES_CLUSTER_ID.key: "orders",
            options.KUBERNETES_IMAGE.key: "firesteel:1",
            options.SECURITY_ENABLED.key: "false",
            options.KUBERNETES_PULL_SECRETS.key: "registry",
            options.KUBERNETES_TM_SERVICE_ACCOUNT.key: "worker",
            options.KUBERNETES_TM_TEMPLATE.key: str(template),
            options.KUBERNETES_TM_LABELS.key: "team:data",
            options.KUBERNETES_TM_ANNOTATIONS.key: "note:text",
            options.KUBERNETES_TM_NODE_SELECTOR.key: "zone:a",
            options.KUBERNETES_TM_TOLERATIONS.key: "key:gpu,operator:Exists,effect:NoSchedule",
            options.KUBERNETES_TM_ENVIRONMENT.key: "TZ=UTC",
            options.KUBERNETES_TM_ENVIRONMENT_SECRETS.key: "s3",
            options.KUBERNETES_SECRETS.key: "certificates:/etc/certificates",
            options.KUBERNETES_TM_RESOURCES.key: "nvidia.com/gpu=1",
        }
    )
    manifest = Manifests(kubernetes_settings(conf, initial_workers=0)).pod(
        name="orders-taskexecutor-3-7",
        attempt=3,
        number=7,
        worker_id=WorkerId("worker-7-0a1b2c"),
        resource_manager_address="rm:6124",
        owner=owner_reference({"apiVersion": "v1", "kind": "ConfigMap"} | owner),
    )
    created = await client.create(PODS, manifest)
    main = created["spec"]["containers"][1]
    assert main["startupProbe"]["grpc"]["port"] == 6125
    assert main["resources"]["limits"]["nvidia.com/gpu"] == "1"
    (found,) = (await client.list(PODS, labels=selector("orders"))).items
    pod = read_pod(found)
    assert pod is not None
    assert (pod.uid, pod.life, pod.number) == (created["metadata"]["uid"], Life.PENDING, 7)
