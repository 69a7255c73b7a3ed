"""Where the API server is, and how callers prove their identity.

find.py         selects a kubeconfig file or the ServiceAccount of the pod
kubeconfig.py   reads kubeconfig files
in_cluster.py   reads what Kubernetes mounts into a pod
credentials.py  tokens, token files, passwords, client certificates
exec_plugin.py  programs that issue credentials
tls.py          certificates, from files or data
proxies.py      HTTPS_PROXY and NO_PROXY
"""
