"""Firesteel's client of the Kubernetes API: about ten calls, and reflectors that follow resources.

    configuration.py  the API server and the cluster's id, as they are configured
    access/           where the API server is, and how callers prove their identity
    resources.py      the resources that Firesteel uses, and their paths
    client.py         the calls
    cluster/          the objects of a cluster: its masters and everything that belongs to them
    pods/             their manifests, from a pod template, and the reasons of their problems
    flink/            clusters that Flink's own client deploys
    reflector/        the current objects of a resource, from a list and a watch

Objects are the dictionaries of their JSON. Nothing here knows jobs or TaskExecutors.
"""
