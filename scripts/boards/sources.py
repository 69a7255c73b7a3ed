"""The board of sources and lag."""

from __future__ import annotations

from scripts.boards.panels import (
    BY_OPERATOR,
    BY_TASK,
    ENUMERATOR,
    OF_CLUSTER,
    OF_JOB,
    OF_TASK,
    OPERATOR,
    TASK,
    Board,
    Panel,
    by_operator,
    of_operators,
    rate_of_operators,
)

READER = f"{OPERATOR}KafkaSourceReader_"

BOARD = Board(
    uid="firesteel-sources",
    title="Firesteel: sources and lag",
    description="What sources read, what they have left, and how far event time is behind.",
    variables=(OF_CLUSTER, OF_JOB, OF_TASK),
    rows={
        "Reading": [
            by_operator(
                "Rows read",
                "Rows per second of each source.",
                "cps",
                f'rate({OPERATOR}numRecordsIn@(operator_name=~"Source: .*")[$__rate_interval])',
            ),
            Panel(
                title="Back-pressured sources",
                description="Share of time in which sources wait for their consumers: the job"
                " is slower than its input.",
                unit="percentunit",
                queries={
                    BY_TASK: "avg by (job_name, task_name) ("
                    f'{TASK}backPressuredTimeMsPerSecond@(task_name=~"Source: .*"))'
                    " / 1000"
                },
            ),
            rate_of_operators(
                "Malformed rows",
                'Rows dropped per second by `malformed="drop"`.',
                "cps",
                "numMalformedRecordsDropped",
            ),
            rate_of_operators(
                "Late rows",
                "Late rows per second that windows, joins and `drop_duplicates` dropped.",
                "cps",
                "numLateRecordsDropped",
            ),
        ],
        "Left to read": [
            Panel(
                title=title,
                description=f"{what} of splits that are not assigned to a task yet.",
                unit=unit,
                queries={BY_OPERATOR: f"{ENUMERATOR}{metric}@J"},
            )
            for title, what, unit, metric in (
                ("Bytes left", "Bytes", "bytes", "pendingBytes"),
                ("Records left", "Records", "short", "pendingRecords"),
                ("Files left", "Files", "short", "pendingFiles"),
                ("Splits left", "Number", "short", "unassignedSplits"),
            )
        ],
        "Kafka": [
            by_operator(
                "Lag",
                "Records from the next one to the end of all partitions of each source.",
                "short",
                f"{OPERATOR}pendingRecords@",
            ),
            Panel(
                title="Largest lags",
                description="The ten partitions with the largest lags.",
                unit="short",
                queries={
                    "{{topic}}/{{partition}}": "topk(10, max by (job_name, topic, partition)"
                    f" ({READER}topic_partition_recordsLag@))"
                },
            ),
            Panel(
                title="Not committed",
                description="Offsets that a source has read since the last commit to its consumer"
                " group. A commit follows each checkpoint.",
                unit="short",
                queries={
                    BY_OPERATOR: "sum by (job_name, operator_name)"
                    f" ({READER}topic_partition_currentOffset@"
                    f" - {READER}topic_partition_committedOffset@)"
                },
            ),
            rate_of_operators(
                "Failed commits",
                "Commits of offsets per second that failed.",
                "cps",
                "KafkaSourceReader_commitsFailed",
            ),
            Panel(
                title="Throttling",
                description="By how long brokers delay the requests of a source because of a"
                " quota.",
                unit="ms",
                queries={
                    BY_OPERATOR: "max by (job_name, operator_name)"
                    f" ({READER}KafkaConsumer_fetch_throttle_time_max@)"
                },
            ),
            by_operator(
                "Paused partitions",
                "Partitions that are paused until downstream operators have caught up.",
                "short",
                f"{READER}pausedPartitions@",
            ),
        ],
        "Event time": [
            Panel(
                title="Lag of watermarks",
                description="Difference between the clock and the event time of the slowest"
                " subtask.",
                unit="ms",
                queries={BY_TASK: f"max by (job_name, task_name) ({TASK}watermarkLag@)"},
                signed=True,
            ),
            Panel(
                title="Progress of event time",
                signed=True,
                description="Seconds of event time per second: 1 keeps pace with the clock, 0 is"
                " stuck.",
                unit="short",
                queries={
                    BY_TASK: "min by (job_name, task_name) ("
                    f"deriv({TASK}currentInputWatermark@[$__rate_interval]) / 1000"
                    f" and ({TASK}currentInputWatermark@ > -9e15 < 9e15))"
                },
            ),
            of_operators(
                "Ahead of the group",
                "How far each source is ahead in its watermark alignment group.",
                "ms",
                "watermarkAlignmentDrift",
            ),
            Panel(
                title="Paused for alignment",
                description="Share of time in which sources are paused for watermark alignment.",
                unit="percentunit",
                queries={
                    BY_OPERATOR: "avg by (job_name, operator_name)"
                    f" ({OPERATOR}pausedTimeMsPerSecond@) / 1000"
                },
            ),
        ],
    },
)
