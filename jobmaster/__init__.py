"""The JobMaster: one process per job; everything that decides about the job lives here (spec 003).

Where to read: `core/core.py` ties the parts together (events in, commands out); `core/phases/` has
a file per phase of the job; `core/execution_graph/` the job's parallel form and its states;
`core/slots/` the slots that it has and needs; `core/scheduling/` what is deployed when;
`core/failover/` what a failure leads to; `core/coordinators/` hand out splits and collect results.
`shell.py` carries the core's commands out, `process.py` is the process around both.
"""
