"""Boards, their panels and variables, and the panels that several boards have.

In a query, `@` stands for the selector of the board's variables, `@J` for that of cluster and job,
`@C` for that of the cluster; `@(slot="0")` adds to it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_SELECTOR = re.compile(r"@([CJ]?)(?:\(([^()]*)\))?")

TASK = "flink_taskmanager_job_task_"
OPERATOR = "flink_taskmanager_job_task_operator_"
JOB = "flink_jobmanager_job_"
MASTER = "flink_jobmanager_"
EXECUTOR = "flink_taskmanager_"
JVM = "flink_taskmanager_Status_JVM_"
ENUMERATOR = "flink_jobmanager_job_operator_coordinator_enumerator_"


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


OF_CLUSTER = Variable("cluster", "Cluster", "flink_jobmanager_taskSlotsTotal", "cluster")
OF_JOB = Variable("job", "Job", f"{JOB}uptime", "job_name")
OF_TASK = Variable("task", "Task", f"{TASK}numRecordsIn", "task_name")
OF_EXECUTOR = Variable("executor", "TaskExecutor", f"{EXECUTOR}storedBytes", "tm_id")
BY_TASK = "{{job_name}}: {{task_name}}"
BY_OPERATOR = "{{job_name}}: {{operator_name}}"
BY_SLOT = "{{tm_id}} slot {{slot}}"


def stat(title: str, description: str, query: str, unit: str = "short", **more: Any) -> Panel:
    return Panel(
        title=title, description=description, unit=unit, queries={"": query}, kind="stat", **more
    )


def by_task(title: str, description: str, unit: str, metric: str, how: str = "sum") -> Panel:
    """A line for each task, over its subtasks."""
    query = f"{how} by (job_name, task_name) ({TASK}{metric}@)"
    return Panel(title=title, description=description, unit=unit, queries={BY_TASK: query})


def rate_by_task(title: str, description: str, unit: str, metric: str) -> Panel:
    query = f"sum by (job_name, task_name) (rate({TASK}{metric}@[$__rate_interval]))"
    return Panel(title=title, description=description, unit=unit, queries={BY_TASK: query})


def share_by_task(title: str, description: str, time: str) -> Panel:
    query = f"avg by (job_name, task_name) ({TASK}{time}TimeMsPerSecond@) / 1000"
    return Panel(title=title, description=description, unit="percentunit", queries={BY_TASK: query})


def by_operator(title: str, description: str, unit: str, query: str) -> Panel:
    query = f"sum by (job_name, operator_name) ({query})"
    return Panel(title=title, description=description, unit=unit, queries={BY_OPERATOR: query})


def of_operators(title: str, description: str, unit: str, metric: str) -> Panel:
    return by_operator(title, description, unit, f"{OPERATOR}{metric}@")


def rate_of_operators(title: str, description: str, unit: str, metric: str) -> Panel:
    return by_operator(title, description, unit, f"rate({OPERATOR}{metric}@[$__rate_interval])")
