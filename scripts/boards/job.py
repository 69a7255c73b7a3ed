"""The board of one job."""

from __future__ import annotations

from scripts.boards.panels import (
    BY_OPERATOR,
    BY_TASK,
    JOB,
    OF_CLUSTER,
    OF_JOB,
    OF_TASK,
    OPERATOR,
    TASK,
    Board,
    Panel,
    by_task,
    of_operators,
    rate_by_task,
    rate_of_operators,
    share_by_task,
    stat,
)

BOARD = Board(
    uid="firesteel-job",
    title="Firesteel: job",
    description="Throughput of a job, and where the time of its tasks goes.",
    variables=(OF_CLUSTER, OF_JOB, OF_TASK),
    rows={
        "Now": [
            stat("Uptime", "Time since the last restart.", f"max({JOB}uptime@J)", "ms"),
            stat(
                "Restarts",
                "Restarts since the start, including those of regions.",
                f"sum({JOB}numRestarts@J)",
                red_from=1,
            ),
            stat(
                "Restarting or failing",
                "Time since the job is not running.",
                f"max({JOB}downtime@J)",
                "ms",
                red_from=1,
            ),
            stat("Tasks", "Running tasks.", f"count({TASK}numRecordsIn@)"),
            stat(
                "Back-pressured tasks",
                "Tasks that wait for their consumers.",
                f"sum({TASK}isBackPressured@)",
                red_from=1,
            ),
            stat(
                "Late rows",
                "Rows that windows, joins and `drop_duplicates` dropped.",
                f"sum({OPERATOR}numLateRecordsDropped@) or vector(0)",
                red_from=1,
            ),
        ],
        "Throughput": [
            rate_by_task("Rows received", "Rows per second.", "cps", "numRecordsIn"),
            rate_by_task("Rows emitted", "Rows per second.", "cps", "numRecordsOut"),
            rate_by_task("Bytes received", "Bytes per second.", "Bps", "numBytesIn"),
            rate_by_task("Bytes emitted", "Bytes per second.", "Bps", "numBytesOut"),
        ],
        "Where the time goes": [
            share_by_task(
                "Busy", "Share of time processing. The bottleneck is near 100 %.", "busy"
            ),
            share_by_task(
                "Back-pressured",
                "Share of time waiting for consumers: the bottleneck is downstream.",
                "backPressured",
            ),
            share_by_task("Idle", "Share of time waiting for input.", "idle"),
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
            share_by_task("In Spark", "Share of time in Spark, with planning.", "spark"),
            share_by_task("In Python", "Share of time in Python functions.", "python"),
            share_by_task("In the exchange", "Share of time sending batches.", "exchange"),
            share_by_task("Planning", "Share of time making plans on Spark.", "sparkPlanning"),
        ],
        "Exchange": [
            by_task(
                "Full input buffers",
                "Usage of the input buffers of the fullest subtask.",
                "percentunit",
                "Shuffle_Netty_Input_Buffers_inPoolUsage",
                "max",
            ),
            by_task(
                "Full output buffers",
                "Usage of the output buffers of the fullest subtask.",
                "percentunit",
                "Shuffle_Netty_Output_Buffers_outPoolUsage",
                "max",
            ),
            by_task(
                "Input queue",
                "Batches and events that wait to be processed.",
                "short",
                "Shuffle_Netty_Input_Buffers_inputQueueLength",
            ),
            by_task(
                "Output queue",
                "Batches and events that wait to be sent.",
                "short",
                "Shuffle_Netty_Output_Buffers_outputQueueLength",
            ),
        ],
        "Operators": [
            rate_of_operators(
                "Rows per operator", "Rows received per second.", "cps", "numRecordsIn"
            ),
            rate_of_operators("Bundles", "Runs of plans on Spark per second.", "ops", "numBundles"),
            of_operators("Rows per bundle", "Mean size of a bundle.", "short", "meanBundleRecords"),
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
