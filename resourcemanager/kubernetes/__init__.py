"""Runs TaskExecutors as pods of Kubernetes.

settings.py   the configuration of the driver
manifest.py   builds the manifests of pods
pod.py        reads the pods of the API server
core.py       decides which pods to create, inspect and delete
driver.py     sends the requests
"""
