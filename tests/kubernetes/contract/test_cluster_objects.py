"""API servers accept the objects of clusters."""

from __future__ import annotations

import pytest

from firesteel.common.config import Configuration
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.cluster import Application, cluster_objects, owned
from firesteel.kubernetes.resources import name_of, resource_of


@pytest.mark.parametrize("masters", ["together", "separate"])
async def test_the_objects_of_a_cluster_are_valid(client: KubernetesClient, masters: str) -> None:
    conf = Configuration(
        {
            "kubernetes.cluster-id": "orders",
            "kubernetes.namespace": client.namespace,
            "kubernetes.container.image.ref": "firesteel:1",
            "kubernetes.jobmanager.replicas": "2",
            "kubernetes.masters": masters,
            "database.url": "postgresql+psycopg2://postgres/firesteel",
            "high-availability.storageDir": "/mnt/firesteel",
        }
    )
    deployment, *others = cluster_objects(conf, Application(program="/opt/job.py"))
    owner = await client.create(resource_of(deployment), deployment)
    for each in owned(others, deployment | owner):
        await client.create(resource_of(each), each)
        found = await client.get(resource_of(each), name_of(each))
        assert found["metadata"]["ownerReferences"][0]["uid"] == owner["metadata"]["uid"]
