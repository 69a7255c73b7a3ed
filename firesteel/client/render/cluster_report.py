"""Renders a cluster, for `firesteel cluster status`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from firesteel.client.cluster.directory import ClusterState
from firesteel.client.job_details import ClusterOverview
from firesteel.client.render.tables import (
    clock,
    cut,
    new_table,
)
from firesteel.common.leader import Office
from firesteel.common.metrics_targets import Target
from firesteel.common.units import mib
from firesteel.high_availability import is_elected
from firesteel.kubernetes.pods.labels import COMPONENT_LABEL
from firesteel.kubernetes.pods.status import condition, problem_of
from firesteel.kubernetes.resources import Object, name_of

if TYPE_CHECKING:
    from firesteel.high_availability.incumbent import Incumbent


def masters(
    state: ClusterState, incumbents: Mapping[Office, Incumbent]
) -> Iterator[RenderableType]:
    """Renders elected masters: which ones lead, and which stand by."""
    whose = ", three servers that this cluster has started" if state.own_ensemble else ""
    yield f"Masters elected at {state.dispatcher_address}{whose}"
    right = ("Pid", "Epoch")
    table = new_table("Master", "Address", "Pid", "Role", "Epoch", "Since", right=right)
    for master in state.masters:
        office = Office(master.office)
        held = incumbents.get(office)
        if held is not None and held.leader.address == master.address:
            role = ("leads", str(held.leader.epoch), clock(held.since_ms))
        else:
            role = ("standby", "", "")
        table.add_row(office.holder, master.address, str(master.pid), *role)
    here = {(Office(master.office), master.address) for master in state.masters}
    for office, held in incumbents.items():
        if (office, held.leader.address) not in here:
            epoch, since = str(held.leader.epoch), clock(held.since_ms)
            table.add_row(office.holder, held.leader.address, "", "leads", epoch, since)
    yield table
    for office in Office:
        if office not in incumbents:
            yield Text(f"No {office.holder} leads: one is being elected", style="bold red")


def metrics(served: Sequence[Target], folder: Path) -> Iterator[RenderableType]:
    if served:
        yield f"Metrics, for Prometheus's file_sd_configs in {folder}/*.json"
        table = new_table("Process", "Metrics", "Pid", "", right=("Pid",))
        for target in served:
            ended = "" if target.lives else "has ended"
            table.add_row(target.process, target.address, str(target.pid), ended)
        yield table


def cluster(state: ClusterState, overview: ClusterOverview, logs: Path) -> Iterator[RenderableType]:
    if not is_elected(state.dispatcher_address):
        yield (
            f"Dispatcher {state.dispatcher_address},"
            f" ResourceManager {state.resource_manager_address}"
        )
    yield (
        f"Running since {clock(state.started_ms)}, version {overview.version},"
        f" supervisor pid {state.supervisor_pid}, logs in {logs}"
    )
    if overview.spark_connect_url:
        yield Text(f"Spark Connect: {overview.spark_connect_url}")
    yield from overview_of(overview)


def overview_of(overview: ClusterOverview) -> Iterator[RenderableType]:
    """Renders the jobs, the slots and the TaskExecutors."""
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


def pods(deployment: Object, found: Sequence[Object]) -> Iterator[RenderableType]:
    """Renders the pods of a cluster on Kubernetes."""
    table = new_table("Pod", "Component", "Phase", "Ready", "Node", "Problem")
    for pod in sorted(found, key=name_of):
        status, labels = pod.get("status") or {}, pod["metadata"].get("labels") or {}
        deleted = "deletionTimestamp" in pod["metadata"]
        table.add_row(
            name_of(pod),
            labels.get(COMPONENT_LABEL, ""),
            "Terminating" if deleted else status.get("phase", ""),
            "yes" if condition(status, "Ready").get("status") == "True" else "no",
            pod["spec"].get("nodeName", ""),
            Text(problem_of(status), style="bold red"),
        )
    yield table
    failure = condition(deployment.get("status") or {}, "ReplicaFailure")
    if failure.get("status") == "True":
        yield Text(f"Pods cannot be created: {failure.get('message', '')}", style="bold red")
