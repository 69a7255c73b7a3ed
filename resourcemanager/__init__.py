"""The ResourceManager: knows every TaskExecutor and slot, and matches free slots with jobs' needs
(spec 003).

The path of a declaration: servicer -> convert -> events -> core (jobs, slots, matching, workers) ->
commands -> shell -> peers. `driver.py` says how TaskExecutors are started.
"""
