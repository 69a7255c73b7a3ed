"""Code that the services and the client share: ids, states, configuration, processes, logs,
metrics, RPC, and the driver of cores.
"""
