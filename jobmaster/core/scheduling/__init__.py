"""Scheduling: `strategies.py` decides which subtasks may start, `scheduler.py` gets them slots and
deploys them.
"""
