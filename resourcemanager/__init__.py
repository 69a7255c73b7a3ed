"""The ResourceManager: tracks TaskExecutors and their slots, and matches free slots with the
requirements of jobs (spec 003).

A declaration passes through: servicer -> convert -> events -> core (jobs, slots, matching, workers)
-> commands -> shell -> peers. `driver.py` describes how TaskExecutors are started.
"""
