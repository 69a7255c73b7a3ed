"""The board of checkpoints and state."""

from __future__ import annotations

from scripts.boards.panels import (
    BY_SLOT,
    EXECUTOR,
    JOB,
    OF_CLUSTER,
    OF_JOB,
    OF_TASK,
    Board,
    Panel,
    by_task,
    of_operators,
)

BOARD = Board(
    uid="firesteel-checkpoints",
    title="Firesteel: checkpoints and state",
    description="Whether checkpoints complete in time, and how large state is.",
    variables=(OF_CLUSTER, OF_JOB, OF_TASK),
    rows={
        "Checkpoints": [
            Panel(
                title="Age of the last checkpoint",
                description="Rows that a failure would process again, as a time. It rises to the"
                " interval plus the duration, then falls to 0.",
                unit="ms",
                queries={
                    "{{job_name}}": f"{JOB}checkpointAge@J",
                    "{{job_name}} interval": f"{JOB}checkpointInterval@J",
                },
            ),
            Panel(
                title="Completed and failed",
                description="Checkpoints and savepoints within five minutes.",
                unit="short",
                queries={
                    "{{job_name}} completed": f"increase({JOB}numberOfCompletedCheckpoints@J[5m])",
                    "{{job_name}} failed": f"increase({JOB}numberOfFailedCheckpoints@J[5m])",
                },
            ),
            Panel(
                title="Duration",
                description="Of the last checkpoint, from its trigger to its completion.",
                unit="ms",
                queries={"{{job_name}}": f"{JOB}lastCheckpointDuration@J"},
            ),
            Panel(
                title="Size",
                description="Of the last checkpoint.",
                unit="bytes",
                queries={"{{job_name}}": f"{JOB}lastCheckpointSize@J"},
            ),
            Panel(
                title="In progress",
                description="Checkpoints that have not ended.",
                unit="short",
                queries={"{{job_name}}": f"{JOB}numberOfInProgressCheckpoints@J"},
            ),
            by_task(
                "Start delay",
                "Time until the first barrier arrived at the slowest subtask. It is long if data"
                " waits in buffers.",
                "ns",
                "checkpointStartDelayNanos",
                "max",
            ),
            by_task(
                "Alignment",
                "Time until all barriers arrived at the slowest subtask. Unaligned checkpoints"
                " avoid it.",
                "ns",
                "checkpointAlignmentTime",
                "max",
            ),
        ],
        "State": [
            by_task("State size", "All subtasks in their last checkpoint.", "bytes", "stateSize"),
            by_task(
                "Largest state of a subtask",
                "The largest part of the last checkpoint: far above the average, keys are skewed.",
                "bytes",
                "stateSize",
                "max",
            ),
            Panel(
                title="Managed memory",
                description="Use of each slot's managed memory by state on disk or in columns.",
                unit="percentunit",
                queries={
                    BY_SLOT: f"{EXECUTOR}Status_Flink_Memory_Managed_Used@C"
                    f" / ({EXECUTOR}Status_Flink_Memory_Managed_Total@C > 0)"
                },
            ),
            of_operators(
                "Keys in RocksDB",
                "Estimated number of keys in the databases of each operator.",
                "short",
                "default_rocksdb_estimate_num_keys",
            ),
            of_operators(
                "Files of RocksDB",
                "Size of the databases on disk.",
                "bytes",
                "default_rocksdb_total_sst_files_size",
            ),
            of_operators(
                "Unflushed writes of RocksDB",
                "Size of writes in memory.",
                "bytes",
                "default_rocksdb_cur_size_all_mem_tables",
            ),
        ],
    },
)
