"""What a failure leads to: which failure is remembered as the cause, whether the job is restarted,
and what of it.

`restart_strategy.py` decides whether and when, `exceptions.py` keeps the history. What is restarted
is, so far, the whole job; `region.py` (a pure `tasks_to_restart(graph, failure)`) has its place
here.
"""
