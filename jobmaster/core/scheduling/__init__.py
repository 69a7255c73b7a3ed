"""Scheduling: `strategies.py` decides which subtasks may start, `scheduler.py` acquires their slots
and deploys them.
"""
