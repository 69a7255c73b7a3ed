"""Makes details of jobs, with a value for each field that a test does not name."""

from __future__ import annotations

from typing import Any

from firesteel.client.job_details import Attempt, CheckpointDetails, Subtask, Vertex
from firesteel.common.states import ExecutionState
from firesteel.common.task_metrics import TaskMetrics


def attempt(**fields: Any) -> Attempt:
    known = {
        "attempt_id": "a" * 32,
        "number": 0,
        "state": ExecutionState.RUNNING,
        "host": "worker",
        "task_executor_id": "e" * 32,
        "slot_index": 0,
        "entered_ms": {ExecutionState.RUNNING: 1},
        "metrics": TaskMetrics(),
        "error": None,
    }
    return Attempt(**(known | fields))


def vertex(*attempts: Attempt, **fields: Any) -> Vertex:
    """Returns a vertex with a subtask for each attempt."""
    known = {
        "vertex_id": "b" * 32,
        "name": "Map",
        "parallelism": len(attempts),
        "max_parallelism": 128,
        "slot_sharing_group": "default",
        "operators": (),
        "subtasks": tuple(Subtask(index=i, attempts=(a,)) for i, a in enumerate(attempts)),
        "input_vertex_ids": (),
    }
    return Vertex(**(known | fields))


def checkpoint(**fields: Any) -> CheckpointDetails:
    known = {
        "checkpoint_id": 1,
        "savepoint": False,
        "state": "COMPLETED",
        "triggered_ms": 1_000,
        "duration_ms": 10,
        "size_bytes": 100,
        "acknowledged": 1,
        "tasks": 1,
        "failure": "",
        "start_delay_ms": 1.0,
        "alignment_ms": 1.0,
        "sync_ms": 1.0,
        "async_ms": 1.0,
    }
    return CheckpointDetails(**(known | fields))
