"""Pods of masters and TaskExecutors.

labels.py     the labels that identify them
settings.py   the configuration of a pod
template.py   builds their manifests, also from a pod template
status.py     reads the reasons why they wait or have ended
"""
