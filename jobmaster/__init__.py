"""The JobMaster: one process per job; everything that decides about the job lives here (spec 003).

Where to read: `core.py` ties the parts together (events in, commands out); `execution_graph/` is
the job's parallel form and its states; `slot_sharing.py` and `slot_pool.py` say which slots the job
needs and has; `scheduler.py` when what is deployed; `failover/` what a failure leads to;
`coordinators/` hand out splits and collect results. None of these does I/O. `service.py`,
`spool.py`, `convert.py`, `details.py` and `__main__.py` are the shell.
"""
