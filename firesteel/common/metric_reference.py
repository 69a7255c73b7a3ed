"""The metrics of all processes with their meanings.

`markdown` returns docs/reference/metrics.md, and `kafka_markdown` the page of Kafka's metrics.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_HEAD = """\
# Metrics

Every process serves its metrics for Prometheus ([monitor jobs](../how-to/monitor.md)). Names and
labels are those of Flink. All metrics are gauges. Every series has a label `cluster`: the id of the
cluster in `cluster.json`, or else `high-availability.cluster-id`. [Metrics of
Kafka](metrics-kafka.md) are on a separate page.

`scripts/reference_pages.py` generates this page from `firesteel/common/metric_reference.py`.
"""
_KAFKA_HEAD = """\
# Metrics of Kafka

Names and labels are those of Flink's connector, so its boards and alerts find them. Operators that
read or write topics also have the [metrics of all operators](metrics.md).

`scripts/reference_pages.py` generates this page from `firesteel/common/metric_reference.py`.
"""


class MetricGroup(NamedTuple):
    prefix: str
    title: str
    labels: tuple[str, ...]
    text: str
    metrics: dict[str, str]


_REFUSED = "Calls by masters that were replaced. Has the label `sender`."
_TASK_LABELS = (
    "host",
    "tm_id",
    "job_id",
    "job_name",
    "task_id",
    "task_name",
    "task_attempt_id",
    "task_attempt_num",
    "subtask_index",
)
_TIMES = {
    "busy": "processing",
    "idle": "waiting for input",
    "backPressured": "waiting for consumers",
    "spark": "in Spark",
    "sparkPlanning": "making plans on Spark",
    "sparkRunning": "running plans on Spark",
    "sparkConverting": "moving rows into the JVM and out of it",
    "sparkReading": "reading files with Arrow",
    "python": "in Python functions and operators",
    "exchange": "sending batches",
    "garbageCollection": "in garbage collection of the slot's JVM",
}
_PROCESS = {
    "CPU_Load": "Share of all cores of the machine, 0 to 1.",
    "Memory_Heap_Used": "Used heap; the resident memory of a Python process.",
    "Memory_Heap_Committed": "Committed heap; the resident memory of a Python process.",
    "Memory_Heap_Max": "Maximum heap; the memory of the machine for a Python process.",
    "Memory_NonHeap_Used": "Used metaspace and compiled code; 0 for a Python process.",
    "Memory_NonHeap_Committed": "Committed metaspace and compiled code; 0 for a Python process.",
    "Memory_NonHeap_Max": "Their limit; -1 for none.",
    "Threads_Count": "Number of threads.",
}
_COLLECTORS = {
    f"GarbageCollector_{collector}_{name}": f"{what} {when}."
    for collector, when in {
        "Copy": "in the young generation, in slots of up to two cores",
        "MarkSweepCompact": "in the old generation, in slots of up to two cores",
        "PS_Scavenge": "in the young generation, in larger slots",
        "PS_MarkSweep": "in the old generation, in larger slots",
        "G1_Young_Generation": "in the young generation, under the name of Flink's default"
        " collector",
        "G1_Old_Generation": "in the old generation, likewise",
    }.items()
    for name, what in {"Count": "Collections", "Time": "Their total time (ms)"}.items()
}

# RocksDB's column family is part of Flink's names. All states of an operator share this one.
_ROCKSDB = {
    f"default_rocksdb_{name}": f"{meaning} (`state.backend.type: rocksdb`)."
    for name, meaning in {
        "actual_delayed_write_rate": "Rate to which writes are limited, 0 for no limit",
        "background_errors": "Errors of flushes and compactions",
        "block_cache_usage": "Use of the block cache, which the databases of a slot share (bytes)",
        "cur_size_all_mem_tables": "Size of writes that are not flushed (bytes)",
        "estimate_num_keys": "Estimated number of keys",
        "num_deletes_imm_mem_tables": "Deletions that wait for a flush",
        "num_entries_imm_mem_tables": "Entries that wait for a flush",
        "num_snapshots": "Unreleased snapshots",
        "total_sst_files_size": "Size of the database's files (bytes)",
    }.items()
}
_DISK = {
    "Free": "Free space on the disk of the directory (bytes).",
    "Total": "Size of the disk (bytes).",
}
_SYSTEM = {
    "CPU_Usage": "Use of all cores, 0 to 100.",
    "Memory_Available": "Memory that is available without swapping (bytes).",
    "Memory_Total": "Memory of the machine (bytes).",
    "Network_INTERFACE_ReceiveRate": "Received bytes per second, for each interface.",
    "Network_INTERFACE_SendRate": "Sent bytes per second, for each interface.",
}

GROUPS = (
    MetricGroup(
        "flink_jobmanager_",
        "Masters",
        ("host",),
        "",
        {
            "numRunningJobs": "Jobs that are running.",
            "numRegisteredTaskManagers": "TaskExecutors that are registered.",
            "taskSlotsTotal": "Slots of all TaskExecutors.",
            "taskSlotsAvailable": "Slots that are free.",
            "taskSlotsMissing": "Slots that jobs require and no free slot can provide.",
            "numOutdatedTaskManagers": "TaskExecutors in pods with an earlier configuration, which"
            " are replaced one by one.",
            "kubernetesPodsAge": "Time since the ResourceManager's list of pods was up to date (s);"
            " only with pods of Kubernetes.",
            "isLeader": "1 if the process leads, else 0. Has the label `office`: `dispatcher` or"
            " `resource_manager`.",
            "numJobs": "Jobs that the Dispatcher knows, by status. Has the label `status`.",
            "numStaleMessagesDropped": "Reports that did not come from a job's current JobMaster.",
            "numFencedMessages": _REFUSED,
        },
    ),
    MetricGroup(
        "flink_jobmanager_job_",
        "Jobs",
        ("host", "job_id", "job_name"),
        "Those of checkpoints exist for jobs with checkpoints and count since the start of the"
        " job's JobMaster.",
        {
            "uptime": "Time in RUNNING since the last start or restart (ms).",
            "downtime": "Time since the job has been failing or restarting (ms).",
            "runningTime": "Total time in RUNNING (ms).",
            "restartingTime": "Total time in RESTARTING (ms).",
            "cancellingTime": "Total time in CANCELLING (ms).",
            "numRestarts": "Restarts, including those of regions.",
            "fullRestarts": "Restarts of the whole job.",
            "staleMessages": "Messages of earlier attempts that were ignored.",
            "numberOfCompletedCheckpoints": "Completed checkpoints.",
            "numberOfFailedCheckpoints": "Failed checkpoints.",
            "numberOfInProgressCheckpoints": "Checkpoints in progress.",
            "totalNumberOfCheckpoints": "All of these.",
            "lastCompletedCheckpointId": "Id of the last completed checkpoint.",
            "lastCheckpointDuration": "Its duration (ms).",
            "lastCheckpointSize": "Its size (bytes).",
            "lastCheckpointCompletedTimestamp": "When it completed (ms since the epoch).",
            "checkpointInterval": "Interval of periodic checkpoints (ms).",
            "checkpointAge": "Time since the last checkpoint completed, or since the job is"
            " running if that is later (ms). Exists while the job is running.",
            "failedTimestamp": "When the job failed (ms since the epoch). The Dispatcher exposes"
            " it for an hour.",
        },
    ),
    MetricGroup(
        "flink_jobmanager_job_operator_coordinator_enumerator_",
        "Sources",
        ("host", "job_id", "job_name", "operator_id", "operator_name"),
        "What a source has listed and not yet assigned to a task. A source has only the metrics"
        " that it knows: files have bytes and files, bounded sequences have records. Unbounded"
        " sequences have none.",
        {
            "unassignedSplits": "Splits: files, parts of files or partitions.",
            "pendingRecords": "Records in these splits.",
            "pendingBytes": "Bytes in these splits.",
            "pendingFiles": "Files that are not completely assigned.",
        },
    ),
    MetricGroup(
        "flink_taskmanager_",
        "TaskExecutors",
        ("host", "tm_id"),
        "",
        {
            "numFencedMessages": _REFUSED,
            "storedPartitions": "Partitions of blocking results that the TaskExecutor stores.",
            "storedBytes": "Their size (bytes).",
        },
    ),
    MetricGroup(
        "flink_taskmanager_job_staticTable_",
        "Static tables",
        ("host", "tm_id", "job_id", "slot", "table"),
        "Exist in each slot for each [static table](static-tables.md) that it has read.",
        {
            "age": "Time since the read of the current rows started (ms).",
            "numFailedRefreshes": "Refreshes that failed.",
        },
    ),
    MetricGroup(
        "flink_taskmanager_job_task_",
        "Tasks",
        _TASK_LABELS,
        "Busy, idle and back-pressured time add up to 1000 ms per second. The others are parts of"
        " busy time.",
        {
            "numRecordsIn": "Rows received. A source counts all rows that it reads, including"
            " those that Spark drops.",
            "numRecordsOut": "Rows emitted.",
            "numBytesIn": "Bytes received.",
            "numBytesOut": "Bytes emitted.",
            "numRecordsInPerSecond": "Rate of rows received.",
            "numRecordsOutPerSecond": "Rate of rows emitted.",
            "numBytesInPerSecond": "Rate of bytes received.",
            "numBytesOutPerSecond": "Rate of bytes emitted.",
            **{
                f"{name}TimeMsPerSecond": f"Time {what} per second (ms)."
                for name, what in _TIMES.items()
            },
            **{
                f"accumulate{name[0].upper()}{name[1:]}TimeMs": f"Total time {what} (ms)."
                for name, what in _TIMES.items()
            },
            "isBackPressured": "1 if the task is back-pressured, else 0.",
            "currentInputWatermark": "Event time of the task (ms since the epoch).",
            "watermarkLag": "Difference between the clock and the event time (ms).",
            "checkpointStartDelayNanos": "Of the last checkpoint: time until the first barrier"
            " arrived (ns).",
            "checkpointAlignmentTime": "Of the last checkpoint: time for aligning barriers (ns).",
            "stateSize": "Size of the task's part of its last checkpoint (bytes).",
            "Shuffle_Netty_Input_Buffers_inPoolUsage": "Usage of input buffers, 0 to 1.",
            "Shuffle_Netty_Output_Buffers_outPoolUsage": "Usage of output buffers, 0 to 1.",
            "Shuffle_Netty_Input_Buffers_inputQueueLength": "Batches and events that wait to be"
            " processed.",
            "Shuffle_Netty_Output_Buffers_outputQueueLength": "Batches and events that wait to be"
            " sent.",
            "buffers_inputQueueLength": "The same as"
            " `Shuffle_Netty_Input_Buffers_inputQueueLength`.",
            "buffers_outputQueueLength": "The same as"
            " `Shuffle_Netty_Output_Buffers_outputQueueLength`.",
        },
    ),
    MetricGroup(
        "flink_taskmanager_job_task_operator_",
        "Operators",
        (*_TASK_LABELS, "operator_id", "operator_name"),
        "An operator has only the metrics that apply to it, and those that your functions and"
        " operators create with `context.counter(name)` and `context.gauge(name, read)`.",
        {
            "numRecordsIn": "Rows received.",
            "numRecordsOut": "Rows emitted.",
            "numRecordsInPerSecond": "Rate of rows received.",
            "numRecordsOutPerSecond": "Rate of rows emitted.",
            "numLateRecordsDropped": "Late rows that windows, joins or `drop_duplicates` dropped.",
            "pendingRecords": "Of a Kafka source: the lag of all partitions of the task, in"
            " offsets; of a source that reports it: its backlog.",
            "numLateVersions": "Late versions of `as_of_join`.",
            "numMalformedRecordsDropped": 'Rows dropped by `malformed="drop"`.',
            "numRecordsReadByArrow": "Rows of files that Arrow has read instead of Spark.",
            "numAsyncRetries": "Retries of `map_async`.",
            "numAsyncTimeouts": "Timeouts of `map_async`.",
            "numRecordsSend": "Of a KafkaSink: records passed to the client.",
            "numBytesSend": "Of a KafkaSink: bytes of the keys and values of these records.",
            "numRecordsOutErrors": "Of a KafkaSink: records that could not be written.",
            "numRecordsSendErrors": "Of a KafkaSink: records that brokers refused.",
            "currentSendTime": "Of a KafkaSink: mean round trip of requests to brokers (ms).",
            "numBundles": "Bundles that went through Spark.",
            "lastBundleRecords": "Rows of the last bundle.",
            "meanBundleRecords": "Mean number of rows of a bundle.",
            "numPlansMade": "Plans made on Spark.",
            "numCachedPlanRuns": "Runs of cached plans.",
            "watermarkAlignmentDrift": "How far the source is ahead of its group (ms).",
            "accumulatedPausedTimeMs": "Total time paused for watermark alignment (ms).",
            "pausedTimeMsPerSecond": "Time paused for watermark alignment per second (ms).",
            "watermarkLag": "Of a source: difference between the clock and its event time (ms).",
            **_ROCKSDB,
        },
    ),
    MetricGroup(
        "flink_taskmanager_job_task_operator_KafkaSourceReader_",
        "Kafka sources",
        (*_TASK_LABELS, "operator_id", "operator_name"),
        "Kafka sources also have `pendingRecords`.",
        {
            "KafkaConsumer_records_lag_max": "The largest lag of a partition of the task.",
            "KafkaConsumer_assigned_partitions": "Partitions that the task reads.",
            "KafkaConsumer_fetch_throttle_time_max": "By how long brokers currently delay the"
            " task's requests because of a quota (ms).",
            "pausedPartitions": "Partitions that are paused until downstream operators have"
            " caught up.",
            "commitsSucceeded": "Commits of offsets to the consumer group.",
            "commitsFailed": "Commits of offsets that failed. The next one includes their offsets.",
        },
    ),
    MetricGroup(
        "flink_taskmanager_job_task_operator_KafkaSourceReader_topic_partition_",
        "Partitions of Kafka sources",
        (*_TASK_LABELS, "operator_id", "operator_name", "topic", "partition"),
        "Each task exposes the partitions with the largest lags, at most 100.",
        {
            "currentOffset": "Offset of the next record.",
            "committedOffset": "Offset that was last committed to the consumer group.",
            "recordsLag": "Offsets from the next record to the end of the partition.",
        },
    ),
    MetricGroup("flink_jobmanager_Status_JVM_", "Processes of masters", ("host",), "", _PROCESS),
    MetricGroup("flink_jobmanager_System_", "Machines of masters", ("host",), "", _SYSTEM),
    MetricGroup(
        "flink_jobmanager_Status_Disk_",
        "Disks of masters",
        ("host", "directory"),
        "The Dispatcher and the ResourceManager report their directory and"
        " `execution.checkpointing.dir`, if it is a path.",
        _DISK,
    ),
    MetricGroup(
        "flink_taskmanager_Status_JVM_",
        "Processes of TaskExecutors and slots",
        ("host", "tm_id"),
        "Series of the JVM of a slot have the label `slot`.",
        {
            **_PROCESS,
            "Memory_Direct_Count": "Direct buffers of a slot's JVM.",
            "Memory_Direct_MemoryUsed": "Their memory (bytes).",
            "Memory_Direct_TotalCapacity": "Their capacity (bytes).",
            "GarbageCollector_All_Count": "Garbage collections of a slot's JVM.",
            "GarbageCollector_All_Time": "Their total time (ms).",
            **_COLLECTORS,
        },
    ),
    MetricGroup(
        "flink_taskmanager_System_", "Machines of TaskExecutors", ("host", "tm_id"), "", _SYSTEM
    ),
    MetricGroup(
        "flink_taskmanager_Status_Disk_",
        "Disks of TaskExecutors",
        ("host", "tm_id", "directory"),
        "The directories are the TaskExecutor's, `/dev/shm`, `state.backend.rocksdb.localdir`, and"
        " `execution.checkpointing.dir` if it is a path.",
        _DISK,
    ),
    MetricGroup(
        "flink_taskmanager_Status_Flink_Memory_Managed_",
        "State of slots",
        ("host", "tm_id", "slot"),
        "",
        {
            "Used": "Managed memory in use by state backends (bytes). State of the backend"
            " `hashmap` is part of the memory of Python.",
            "Total": "Managed memory of the slot's profile (bytes).",
        },
    ),
    MetricGroup(
        "flink_taskmanager_Status_Slot_Memory_",
        "Memory of slots",
        ("host", "tm_id", "slot"),
        "Pages of files do not count. `JVM`, `Python` and `Shared` add up to `Total`. They are"
        " measured every `taskmanager.memory.watch.interval`.",
        {
            "Limit": "Memory of the slot's profile (bytes). A slot that exceeds it is killed.",
            "Total": "Resident memory of the slot's processes (bytes).",
            "JVM": "Resident memory of the JVM: heap, metaspace, code and buffers (bytes).",
            "Python": "Resident memory of Python and of its child processes (bytes).",
            "Shared": "Memory in which Python and the JVM exchange rows (bytes).",
        },
    ),
)


def documents(name: str) -> bool:
    """Returns whether a name is one of the metrics. INTERFACE stands for any network interface."""
    return any(
        re.fullmatch((group.prefix + metric).replace("INTERFACE", r"\w+"), name)
        for group in GROUPS
        for metric in group.metrics
    )


def markdown() -> str:
    """Returns the page, in lines of any length."""
    return _page(_HEAD, [group for group in GROUPS if "Kafka" not in group.prefix])


def kafka_markdown() -> str:
    """Returns the page of Kafka's metrics, in lines of any length."""
    return _page(_KAFKA_HEAD, [group for group in GROUPS if "Kafka" in group.prefix])


def _page(head: str, groups: Sequence[MetricGroup]) -> str:
    parts = [head]
    for group in groups:
        labels = ", ".join(f"`{label}`" for label in group.labels)
        parts.append(f"\n## {group.title}\n\nPrefix `{group.prefix}`, labels {labels}.")
        parts.append(f" {group.text}\n\n" if group.text else "\n\n")
        parts += [f"- `{name}`: {meaning}\n" for name, meaning in group.metrics.items()]
    return "".join(parts)
