"""The objects of a cluster on Kubernetes.

    settings.py  what the configuration says about the masters, checked
    objects.py   builds all objects; needs no API server
    access.py    the permissions of the masters, and who may connect to the pods

`cluster_objects` returns the Deployment first. It owns the other objects, so that all of them are
deleted with it. Names, for the cluster `orders`:

    Deployment                         orders, and orders-resourcemanager with separate masters
    Service                            orders (headless), orders-rest, orders-resourcemanager
    ConfigMap                          orders-config
    ServiceAccount, Role, RoleBinding  orders-masters, unless a ServiceAccount is configured
    Lease                              orders-dispatcher, orders-resourcemanager
    PodDisruptionBudget                orders-masters, with several pods of masters
    NetworkPolicy                      orders-cluster, orders-masters
"""

from firesteel.kubernetes.cluster.objects import cluster_objects, owned
from firesteel.kubernetes.cluster.settings import Application, ClusterSettings, job_id_of

__all__ = ["Application", "ClusterSettings", "cluster_objects", "job_id_of", "owned"]
