"""Runs TaskExecutors as pods of Kubernetes.

settings.py   the configuration of the driver and its pods
manifest.py   builds the manifests of pods, also from a pod template
pod.py        reads the objects of the API server: a pod's life, and the reasons of its problems
core.py       decides which pods to create, inspect and delete
driver.py     sends the requests
"""
