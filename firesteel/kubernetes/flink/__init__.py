"""Runs clusters that Flink's own client deploys on Kubernetes.

translation.py   Flink's configuration in Firesteel's, without I/O
__main__.py      the process that Flink's client starts in the pod of the masters
"""
