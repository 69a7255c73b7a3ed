"""Failover: `regions.py` decides which tasks restart after a failure, `restart_strategy.py` whether
and when, and `exceptions.py` keeps the history of failures.
"""
