"""Kubernetes for tests: an API server, its controllers and a kubelet that runs pods as processes.

api_server.py   HTTP: routes, authentication, faults; `python -m tests.kubernetes.api_server`
kinds.py        the kinds of objects
store.py        objects, resourceVersions, the history for watches
registry.py     creates, updates and deletes objects by the rules of their kinds
admission.py    defaults, validation, immutability, quotas
patches.py      merge patches and strategic merge patches
apply.py        server-side apply, and the managers of fields
protobuf.py     objects that typed clients do not send as JSON
selection.py    label and field selectors
access.py       certificates, tokens, permissions
controllers.py  garbage collection, Deployments, ReplicaSets, PodDisruptionBudgets
scheduler.py    assigns pods to nodes
kubelet.py      runs pods as processes of this machine
containers.py   a container: its starts, restarts, probes and end
pod_files.py    the volumes and the variables of a pod
names.py        names of Services in /etc/hosts
contract/       tests that also run against a real API server, see real.py
"""
