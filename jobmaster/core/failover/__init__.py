"""Failover: `restart_strategy.py` decides whether and when a failed job is restarted,
`exceptions.py` keeps the history of failures. So far the whole job is restarted; the place of
`region.py`, a pure `tasks_to_restart(graph, failure)`, is here.
"""
