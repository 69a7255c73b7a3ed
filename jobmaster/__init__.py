"""The JobMaster: one process per job, which makes all decisions about that job (spec 003).

Where to read: `core/core.py` ties the parts together (events in, commands out); `core/phases/` has
a file per phase of the job; `core/execution_graph/` the job's parallel form and its states;
`core/slots/` its slots and its requirements; `core/scheduling/` the order of deployment;
`core/failover/` the reaction to failures; `core/coordinators/` assign splits and collect results.
`shell.py` carries out the core's commands; `process.py` is the process around both.
"""
