"""The board of jobs, slots, masters and machines."""

from __future__ import annotations

from scripts.boards.panels import EXECUTOR, JOB, MASTER, OF_CLUSTER, OPERATOR, Board, Panel, stat

BOARD = Board(
    uid="firesteel-cluster",
    title="Firesteel: cluster",
    description="Jobs, slots, masters and machines.",
    variables=(OF_CLUSTER,),
    rows={
        "Now": [
            stat("Running jobs", "Jobs that have not ended.", f"sum({MASTER}numRunningJobs@)"),
            stat(
                "Failed jobs",
                "Jobs that failed within the last hour.",
                f"count({JOB}failedTimestamp@) or vector(0)",
                red_from=1,
            ),
            stat(
                "TaskExecutors",
                "TaskExecutors that are registered.",
                f"sum({MASTER}numRegisteredTaskManagers@)",
            ),
            stat("Free slots", "Slots without a job.", f"sum({MASTER}taskSlotsAvailable@)"),
            stat(
                "Missing slots",
                "Slots that jobs require and no free slot can provide.",
                f"sum({MASTER}taskSlotsMissing@)",
                red_from=1,
            ),
            stat(
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
