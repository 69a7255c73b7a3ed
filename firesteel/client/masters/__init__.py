"""The masters of one pod on Kubernetes: `firesteel service masters`.

__main__.py     starts the Dispatcher and the ResourceManager, and restarts those that end
leadership.py   marks the pods of the leaders
loopback.py     accepts connections of port-forwards, which arrive on loopback
metrics_secret.py  renews the credentials of Prometheus
application.py  runs the program of an application cluster, and deletes the cluster at its end
"""
