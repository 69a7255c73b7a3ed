"""Writes the boards of deploy/grafana/dashboards: `make reference`.

    python scripts/grafana_boards.py

A board has rows of panels. In a query, `@` stands for the selector of the board's variables, `@J`
for that of cluster and job, `@C` for that of the cluster; `@(slot="0")` adds to it.
`tests/unit/test_boards.py` fails when a board is out of date.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[1] / "deploy" / "grafana" / "dashboards"
SOURCE = {"type": "prometheus", "uid": "prometheus"}
HEIGHT = 8
STAT_HEIGHT = 4
COLUMNS = 24
_SELECTOR = re.compile(r"@([CJ]?)(?:\(([^()]*)\))?")


class Variable(NamedTuple):
    name: str
    label: str
    metric: str  # whose label gives the values
    of: str  # the label


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    title: str
    description: str
    unit: str
    queries: dict[str, str]  # legend: query
    kind: str = "timeseries"
    stacked: bool = False
    signed: bool = False  # whether values may be negative
    red_from: float | None = None  # the value from which a number is red
    link: str = ""  # the uid of the board to open for a job


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: dict[str, list[Panel]] = field(default_factory=dict)

    def expression(self, query: str) -> str:
        """Replaces each `@` by the selector of the variables."""

        def selector(match: re.Match[str]) -> str:
            count = {"": None, "C": 1, "J": 2}[match[1]]
            parts = [f'{v.of}=~"${v.name}"' for v in self.variables[:count]]
            return "{" + ",".join([*parts, *([match[2]] if match[2] else [])]) + "}"

        return _SELECTOR.sub(selector, query)


TASK = "flink_taskmanager_job_task_"
OPERATOR = "flink_taskmanager_job_task_operator_"
JOB = "flink_jobmanager_job_"
MASTER = "flink_jobmanager_"
EXECUTOR = "flink_taskmanager_"
JVM = "flink_taskmanager_Status_JVM_"
ENUMERATOR = "flink_jobmanager_job_operator_coordinator_enumerator_"

_CLUSTER = Variable("cluster", "Cluster", "flink_jobmanager_taskSlotsTotal", "cluster")
_JOB = Variable("job", "Job", f"{JOB}uptime", "job_name")
_TASK = Variable("task", "Task", f"{TASK}numRecordsIn", "task_name")
_EXECUTOR = Variable("executor", "TaskExecutor", f"{EXECUTOR}storedBytes", "tm_id")
BY_TASK = "{{job_name}}: {{task_name}}"
BY_OPERATOR = "{{job_name}}: {{operator_name}}"
BY_SLOT = "{{tm_id}} slot {{slot}}"


def _stat(title: str, description: str, query: str, unit: str = "short", **more: Any) -> Panel:
    return Panel(
        title=title, description=description, unit=unit, queries={"": query}, kind="stat", **more
    )


def _by_task(title: str, description: str, unit: str, metric: str, how: str = "sum") -> Panel:
    """A line for each task, over its subtasks."""
    query = f"{how} by (job_name, task_name) ({TASK}{metric}@)"
    return Panel(title=title, description=description, unit=unit, queries={BY_TASK: query})


def _rate_by_task(title: str, description: str, unit: str, metric: str) -> Panel:
    query = f"sum by (job_name, task_name) (rate({TASK}{metric}@[$__rate_interval]))"
    return Panel(title=title, description=description, unit=unit, queries={BY_TASK: query})


def _share_by_task(title: str, description: str, time: str) -> Panel:
    query = f"avg by (job_name, task_name) ({TASK}{time}TimeMsPerSecond@) / 1000"
    return Panel(title=title, description=description, unit="percentunit", queries={BY_TASK: query})


def _by_operator(title: str, description: str, unit: str, query: str) -> Panel:
    query = f"sum by (job_name, operator_name) ({query})"
    return Panel(title=title, description=description, unit=unit, queries={BY_OPERATOR: query})


def _of_operators(title: str, description: str, unit: str, metric: str) -> Panel:
    return _by_operator(title, description, unit, f"{OPERATOR}{metric}@")


def _rate_of_operators(title: str, description: str, unit: str, metric: str) -> Panel:
    return _by_operator(title, description, unit, f"rate({OPERATOR}{metric}@[$__rate_interval])")


CLUSTER = Board(
    uid="firesteel-cluster",
    title="Firesteel: cluster",
    description="Jobs, slots, masters and machines.",
    variables=(_CLUSTER,),
    rows={
        "Now": [
            _stat("Running jobs", "Jobs that have not ended.", f"sum({MASTER}numRunningJobs@)"),
            _stat(
                "Failed jobs",
                "Jobs that failed within the last hour.",
                f"count({JOB}failedTimestamp@) or vector(0)",
                red_from=1,
            ),
            _stat(
                "TaskExecutors",
                "TaskExecutors that are registered.",
                f"sum({MASTER}numRegisteredTaskManagers@)",
            ),
            _stat("Free slots", "Slots without a job.", f"sum({MASTER}taskSlotsAvailable@)"),
            _stat(
                "Missing slots",
                "Slots that jobs require and no free slot can provide.",
                f"sum({MASTER}taskSlotsMissing@)",
                red_from=1,
            ),
            _stat(
                "Processes down",
                "Processes that Prometheus knows and cannot read, in all clusters.",
                'count(up{job="firesteel"} == 0) or vector(0)',
                red_from=1,
            ),
        ],
        "Jobs": [
            Panel(
                title="Uptime of jobs",
                description="Time since the last start or restart of each job. Opens the job.",
                unit="ms",
                queries={"{{job_name}}": f"{JOB}uptime@"},
                link="firesteel-job",
            ),
            Panel(
                title="Jobs by status",
                description="Jobs that the Dispatcher knows, until they are removed.",
                unit="short",
                queries={"{{status}}": f"sum by (status) ({MASTER}numJobs@)"},
                stacked=True,
            ),
            Panel(
                title="Restarts",
                description="Restarts of jobs and of regions within five minutes.",
                unit="short",
                queries={"{{job_name}}": f"increase({JOB}numRestarts@[5m])"},
            ),
            Panel(
                title="Records read per second",
                description="Rows that the sources of each job read.",
                unit="cps",
                queries={
                    "{{job_name}}": "sum by (job_name) (rate("
                    f'{OPERATOR}numRecordsIn@(operator_name=~"Source: .*")'
                    "[$__rate_interval]))"
                },
            ),
        ],
        "Slots and masters": [
            Panel(
                title="Slots",
                description="All slots, free ones, and those that jobs wait for.",
                unit="short",
                queries={
                    "all": f"sum({MASTER}taskSlotsTotal@)",
                    "free": f"sum({MASTER}taskSlotsAvailable@)",
                    "missing": f"sum({MASTER}taskSlotsMissing@)",
                },
            ),
            Panel(
                title="Leaders",
                description="Processes that hold each office: 1, and briefly 0 while one is"
                " elected.",
                unit="short",
                queries={"{{office}}": f"sum by (cluster, office) ({MASTER}isLeader@)"},
            ),
            Panel(
                title="Processes",
                description="Processes that Prometheus reads, in all clusters.",
                unit="short",
                queries={"{{process}}": 'sum by (process) (up{job="firesteel"})'},
                stacked=True,
            ),
            Panel(
                title="Refused messages",
                description="Reports of replaced JobMasters and calls of replaced masters. They"
                " are expected after a failover.",
                unit="short",
                queries={
                    "stale reports": f"sum(increase({MASTER}numStaleMessagesDropped@[5m]))",
                    "stale messages": f"sum(increase({JOB}staleMessages@[5m]))",
                },
            ),
        ],
        "Machines": [
            Panel(
                title="CPU of processes",
                description="Share of all cores of the machine, without the JVMs of slots.",
                unit="percentunit",
                queries={"{{process}} {{instance}}": '@(__name__=~"flink_.*_Status_JVM_CPU_Load")'},
            ),
            Panel(
                title="Memory of processes",
                description="Resident memory of the masters and TaskExecutors. Their slots are on"
                " the board of slots.",
                unit="bytes",
                queries={
                    "{{process}} {{instance}}": "@("
                    '__name__=~"flink_.*_Status_JVM_Memory_Heap_Used",slot="")'
                },
            ),
            Panel(
                title="Free disk space",
                description="Free share of the disk of each directory.",
                unit="percentunit",
                queries={
                    "{{host}} {{directory}}": "min by (host, directory) ("
                    '@(__name__=~"flink_.*_Status_Disk_Free")'
                    ' / @(__name__=~"flink_.*_Status_Disk_Total"))'
                },
            ),
            Panel(
                title="CPU and memory of machines",
                description="Use of all cores, and of the memory, of machines with TaskExecutors.",
                unit="percentunit",
                queries={
                    "CPU of {{host}}": f"max by (host) ({EXECUTOR}System_CPU_Usage@) / 100",
                    "memory of {{host}}": "1 - max by (host)"
                    f" ({EXECUTOR}System_Memory_Available@"
                    f" / {EXECUTOR}System_Memory_Total@)",
                },
            ),
        ],
    },
)

ONE_JOB = Board(
    uid="firesteel-job",
    title="Firesteel: job",
    description="Throughput of a job, and where the time of its tasks goes.",
    variables=(_CLUSTER, _JOB, _TASK),
    rows={
        "Now": [
            _stat("Uptime", "Time since the last restart.", f"max({JOB}uptime@J)", "ms"),
            _stat(
                "Restarts",
                "Restarts since the start, including those of regions.",
                f"sum({JOB}numRestarts@J)",
                red_from=1,
            ),
            _stat(
                "Restarting or failing",
                "Time since the job is not running.",
                f"max({JOB}downtime@J)",
                "ms",
                red_from=1,
            ),
            _stat("Tasks", "Running tasks.", f"count({TASK}numRecordsIn@)"),
            _stat(
                "Back-pressured tasks",
                "Tasks that wait for their consumers.",
                f"sum({TASK}isBackPressured@)",
                red_from=1,
            ),
            _stat(
                "Late rows",
                "Rows that windows, joins and `drop_duplicates` dropped.",
                f"sum({OPERATOR}numLateRecordsDropped@) or vector(0)",
                red_from=1,
            ),
        ],
        "Throughput": [
            _rate_by_task("Rows received", "Rows per second.", "cps", "numRecordsIn"),
            _rate_by_task("Rows emitted", "Rows per second.", "cps", "numRecordsOut"),
            _rate_by_task("Bytes received", "Bytes per second.", "Bps", "numBytesIn"),
            _rate_by_task("Bytes emitted", "Bytes per second.", "Bps", "numBytesOut"),
        ],
        "Where the time goes": [
            _share_by_task(
                "Busy", "Share of time processing. The bottleneck is near 100 %.", "busy"
            ),
            _share_by_task(
                "Back-pressured",
                "Share of time waiting for consumers: the bottleneck is downstream.",
                "backPressured",
            ),
            _share_by_task("Idle", "Share of time waiting for input.", "idle"),
            Panel(
                title="Busiest subtask",
                description="Busy time of the busiest subtask, relative to the average: far above"
                " 1, keys are skewed.",
                unit="short",
                queries={
                    BY_TASK: f"max by (job_name, task_name) ({TASK}busyTimeMsPerSecond@)"
                    f" / (avg by (job_name, task_name) ({TASK}busyTimeMsPerSecond@) > 0)"
                },
            ),
            _share_by_task("In Spark", "Share of time in Spark, with planning.", "spark"),
            _share_by_task("In Python", "Share of time in Python functions.", "python"),
            _share_by_task("In the exchange", "Share of time sending batches.", "exchange"),
            _share_by_task("Planning", "Share of time making plans on Spark.", "sparkPlanning"),
        ],
        "Exchange": [
            _by_task(
                "Full input buffers",
                "Usage of the input buffers of the fullest subtask.",
                "percentunit",
                "Shuffle_Netty_Input_Buffers_inPoolUsage",
                "max",
            ),
            _by_task(
                "Full output buffers",
                "Usage of the output buffers of the fullest subtask.",
                "percentunit",
                "Shuffle_Netty_Output_Buffers_outPoolUsage",
                "max",
            ),
            _by_task(
                "Input queue",
                "Batches and events that wait to be processed.",
                "short",
                "Shuffle_Netty_Input_Buffers_inputQueueLength",
            ),
            _by_task(
                "Output queue",
                "Batches and events that wait to be sent.",
                "short",
                "Shuffle_Netty_Output_Buffers_outputQueueLength",
            ),
        ],
        "Operators": [
            _rate_of_operators(
                "Rows per operator", "Rows received per second.", "cps", "numRecordsIn"
            ),
            _rate_of_operators(
                "Bundles", "Runs of plans on Spark per second.", "ops", "numBundles"
            ),
            _of_operators(
                "Rows per bundle", "Mean size of a bundle.", "short", "meanBundleRecords"
            ),
            Panel(
                title="Plans made",
                description="Plans made per second. In a steady state, cached plans run instead.",
                unit="ops",
                queries={
                    f"made by {BY_OPERATOR}": "sum by (job_name, operator_name)"
                    f" (rate({OPERATOR}numPlansMade@[$__rate_interval]))",
                    f"cached by {BY_OPERATOR}": "sum by (job_name, operator_name)"
                    f" (rate({OPERATOR}numCachedPlanRuns@[$__rate_interval]))",
                },
            ),
        ],
    },
)

CHECKPOINTS = Board(
    uid="firesteel-checkpoints",
    title="Firesteel: checkpoints and state",
    description="Whether checkpoints complete in time, and how large state is.",
    variables=(_CLUSTER, _JOB, _TASK),
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
            _by_task(
                "Start delay",
                "Time until the first barrier arrived at the slowest subtask. It is long if data"
                " waits in buffers.",
                "ns",
                "checkpointStartDelayNanos",
                "max",
            ),
            _by_task(
                "Alignment",
                "Time until all barriers arrived at the slowest subtask. Unaligned checkpoints"
                " avoid it.",
                "ns",
                "checkpointAlignmentTime",
                "max",
            ),
        ],
        "State": [
            _by_task("State size", "All subtasks in their last checkpoint.", "bytes", "stateSize"),
            _by_task(
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
            _of_operators(
                "Keys in RocksDB",
                "Estimated number of keys in the databases of each operator.",
                "short",
                "default_rocksdb_estimate_num_keys",
            ),
            _of_operators(
                "Files of RocksDB",
                "Size of the databases on disk.",
                "bytes",
                "default_rocksdb_total_sst_files_size",
            ),
            _of_operators(
                "Unflushed writes of RocksDB",
                "Size of writes in memory.",
                "bytes",
                "default_rocksdb_cur_size_all_mem_tables",
            ),
        ],
    },
)

SOURCES = Board(
    uid="firesteel-sources",
    title="Firesteel: sources and lag",
    description="What sources read, what they have left, and how far event time is behind.",
    variables=(_CLUSTER, _JOB, _TASK),
    rows={
        "Reading": [
            _by_operator(
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
            _rate_of_operators(
                "Malformed rows",
                'Rows dropped per second by `malformed="drop"`.',
                "cps",
                "numMalformedRecordsDropped",
            ),
            _rate_of_operators(
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
            _of_operators(
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

SLOTS = Board(
    uid="firesteel-slots",
    title="Firesteel: slots",
    description="Memory of slots by part, their JVMs and their TaskExecutors.",
    variables=(_CLUSTER, _EXECUTOR),
    rows={
        "Memory": [
            Panel(
                title="Memory against the limit",
                description="Share of its limit that each slot uses. At 100 %, its process is"
                " killed.",
                unit="percentunit",
                queries={
                    BY_SLOT: f"{EXECUTOR}Status_Slot_Memory_Total@"
                    f" / {EXECUTOR}Status_Slot_Memory_Limit@"
                },
            ),
            Panel(
                title="Memory by part",
                description="All slots. Shared memory holds rows between Python and the JVM.",
                unit="bytes",
                queries={
                    part: f"sum({EXECUTOR}Status_Slot_Memory_{part}@)"
                    for part in ("JVM", "Python", "Shared")
                },
                stacked=True,
            ),
            Panel(
                title="Memory of Python",
                description="Resident memory of each slot's Python process and its children.",
                unit="bytes",
                queries={BY_SLOT: f"{EXECUTOR}Status_Slot_Memory_Python@"},
            ),
            Panel(
                title="Managed memory",
                description="Used by state on disk and by paged state.",
                unit="bytes",
                queries={BY_SLOT: f"{EXECUTOR}Status_Flink_Memory_Managed_Used@"},
            ),
        ],
        "JVM": [
            Panel(
                title="Heap",
                description="Used heap of each slot's JVM, and its maximum.",
                unit="bytes",
                queries={
                    BY_SLOT: f'{JVM}Memory_Heap_Used@(slot!="")',
                    f"{BY_SLOT} maximum": f'{JVM}Memory_Heap_Max@(slot!="")',
                },
            ),
            Panel(
                title="Memory outside the heap",
                description="Metaspace and compiled code, and direct buffers.",
                unit="bytes",
                queries={
                    BY_SLOT: f'{JVM}Memory_NonHeap_Used@(slot!="")',
                    f"{BY_SLOT} direct": f"{JVM}Memory_Direct_MemoryUsed@",
                },
            ),
            Panel(
                title="Time in garbage collection",
                description="Share of time. Above 10 %, the heap is too small.",
                unit="percentunit",
                queries={
                    BY_SLOT: f"rate({JVM}GarbageCollector_All_Time@[$__rate_interval]) / 1000"
                },
            ),
            Panel(
                title="Garbage collections",
                description="Collections per second.",
                unit="ops",
                queries={
                    f"{BY_SLOT} young": f"rate({JVM}GarbageCollector_G1_Young_Generation_Count@"
                    "[$__rate_interval])",
                    f"{BY_SLOT} old": f"rate({JVM}GarbageCollector_G1_Old_Generation_Count@"
                    "[$__rate_interval])",
                },
            ),
            Panel(
                title="Threads",
                description="Threads of each JVM, and of each TaskExecutor.",
                unit="short",
                queries={"{{tm_id}} {{slot}}": f"{JVM}Threads_Count@"},
            ),
        ],
        "TaskExecutors": [
            Panel(
                title="CPU",
                description="Share of all cores that each TaskExecutor uses, without its slots.",
                unit="percentunit",
                queries={"{{tm_id}}": f"{JVM}CPU_Load@"},
            ),
            Panel(
                title="Stored results",
                description="Size of blocking results of batch jobs.",
                unit="bytes",
                queries={"{{tm_id}}": f"{EXECUTOR}storedBytes@"},
            ),
            Panel(
                title="Age of static tables",
                description="Time since the read of each table's rows started.",
                unit="ms",
                queries={"{{table}} slot {{slot}}": f"{EXECUTOR}job_staticTable_age@"},
            ),
            Panel(
                title="Free disk space",
                description="Free space on the disk of each directory.",
                unit="bytes",
                queries={"{{host}} {{directory}}": f"{EXECUTOR}Status_Disk_Free@"},
            ),
        ],
    },
)

BOARDS = (CLUSTER, ONE_JOB, CHECKPOINTS, SOURCES, SLOTS)


def board_json(board: Board) -> dict[str, Any]:
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.description,
        "tags": ["firesteel"],
        "schemaVersion": 41,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "links": [
            {
                "type": "dashboards",
                "tags": ["firesteel"],
                "title": "Boards",
                "includeVars": True,
                "keepTime": True,
                "asDropdown": False,
            }
        ],
        "templating": {"list": list(_variables(board))},
        "panels": list(_panels(board)),
    }


def _variables(board: Board) -> Iterator[dict[str, Any]]:
    before: list[str] = []
    for variable in board.variables:
        query = f"label_values({variable.metric}{{{','.join(before)}}}, {variable.of})"
        before.append(f'{variable.of}=~"${variable.name}"')
        yield {
            "name": variable.name,
            "label": variable.label,
            "type": "query",
            "datasource": SOURCE,
            "definition": query,
            "query": {"query": query, "refId": variable.name},
            "refresh": 2,
            "sort": 1,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


def _panels(board: Board) -> Iterator[dict[str, Any]]:
    number = top = 0
    for title, panels in board.rows.items():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": top},
        }
        top += 1
        height, per_line = (STAT_HEIGHT, 6) if panels[0].kind == "stat" else (HEIGHT, 2)
        width = COLUMNS // per_line
        for index, panel in enumerate(panels):
            number += 1
            line, column = divmod(index, per_line)
            place = {"h": height, "w": width, "x": column * width, "y": top + line * height}
            yield {"id": number, **_panel(board, panel), "gridPos": place}
        top += -(-len(panels) // per_line) * height


def _panel(board: Board, panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    options: dict[str, Any]
    if panel.kind == "stat":
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value"}
        steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
        if panel.red_from is not None:
            steps.append({"color": "red", "value": panel.red_from})
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    else:
        options = {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
        if not panel.signed:
            defaults["min"] = 0
        defaults["custom"] = {
            "fillOpacity": 20 if panel.stacked else 5,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none"},
        }
    if panel.link:
        defaults["links"] = [
            {
                "title": "Open the job",
                "url": f"/d/{panel.link}?var-job=${{__field.labels.job_name}}"
                "&${__url_time_range}",
            }
        ]
    return {
        "title": panel.title,
        "description": panel.description,
        "type": panel.kind,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": SOURCE,
                "expr": board.expression(query),
                "legendFormat": legend or "__auto",
            }
            for number, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def boards() -> dict[str, str]:
    """Returns the files by name."""
    return {f"{board.uid}.json": json.dumps(board_json(board), indent=2) + "\n" for board in BOARDS}


if __name__ == "__main__":
    for name, content in boards().items():
        (FOLDER / name).write_text(content)
