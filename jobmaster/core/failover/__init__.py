"""Failover: `regions.py` decides which tasks a failure restarts, `restart_strategy.py` whether and
when, `exceptions.py` keeps the history of failures.
"""
