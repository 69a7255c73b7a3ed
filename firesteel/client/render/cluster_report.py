"""A cluster: what `firesteel cluster status` prints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from firesteel.client.cluster.directory import ClusterState
from firesteel.client.job_details import ClusterOverview
from firesteel.client.render.tables import (
    clock,
    cut,
    new_table,
)
from firesteel.common.units import mib


def cluster(state: ClusterState, overview: ClusterOverview, logs: Path) -> Iterator[RenderableType]:
    yield (
        f"Dispatcher {state.dispatcher_address},"
        f" ResourceManager {state.resource_manager_address}, version {overview.version}"
    )
    yield (
        f"Running since {clock(state.started_ms)},"
        f" supervisor pid {state.supervisor_pid}, logs in {logs}"
    )
    yield (
        f"Jobs: {overview.jobs_running} running, {overview.jobs_finished} finished,"
        f" {overview.jobs_canceled} canceled, {overview.jobs_failed} failed"
    )
    if overview.resource_manager_problem:
        yield Text(overview.resource_manager_problem, style="bold red")
        return
    missing = f", {overview.slots_missing} missing" if overview.slots_missing else ""
    yield (
        f"Slots: {overview.slots_free} free of {overview.slots_total},"
        f" {overview.slots_warm} warm{missing}"
    )
    if overview.task_executors:
        stored = any(worker.stored_bytes for worker in overview.task_executors)
        stops = any(worker.stops for worker in overview.task_executors)
        right = ("Pid", "Slots", "Free", "Warm", *(["Results"] if stored else []))
        table = new_table(
            *("TaskExecutor", "Address", "Host", *right, *(["State"] if stops else [])),
            right=right,
            gives_way=("TaskExecutor",),
        )
        for worker in overview.task_executors:
            table.add_row(
                cut(worker.task_executor_id),
                worker.address,
                worker.host,
                *map(str, (worker.pid, worker.slots, worker.slots_free, worker.slots_warm)),
                *([mib(worker.stored_bytes)] if stored else []),
                *(["stopping" if worker.stops else ""] if stops else []),
            )
        yield table
        for worker in overview.task_executors:
            if worker.slot_problem:
                problem = f"TaskExecutor {cut(worker.task_executor_id)}: {worker.slot_problem}"
                yield Text(problem, style="bold red")
