"""The ResourceManager: knows every TaskExecutor and slot, matches what jobs need to what is free
(spec 003).

`slot_manager.py` decides (a pure core); `service.py` carries it to and fro over gRPC; `driver.py`
is how TaskExecutors are started. The way of a declaration: service -> convert -> events ->
slot_manager (jobs, slots, matching, workers) -> commands -> service.
"""
