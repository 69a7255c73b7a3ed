"""Jobs, plans and clusters as tables and text."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from firesteel.cluster.directory import ClusterState
from firesteel.errors import ErrorInfo
from firesteel.job_details import Attempt, ClusterOverview, JobDetails, TaskMetrics, Vertex
from firesteel.jobgraph import JobGraph, JobVertex
from firesteel.states import ExecutionState, JobStatus

if TYPE_CHECKING:
    from firesteel.execution import JobResult

_STYLES = {
    "RUNNING": "green",
    "FINISHED": "bold green",
    "FAILED": "bold red",
    "FAILING": "red",
    "CANCELED": "yellow",
    "CANCELING": "yellow",
    "CANCELLING": "yellow",
}
_PLAIN_WIDTH = 160  # of tables that go into a file or a pipe


def console() -> Console:
    made = Console(highlight=False, markup=False)  # names are the user's: no part of them is markup
    return made if made.is_terminal else Console(highlight=False, markup=False, width=_PLAIN_WIDTH)


def state_text(state: ExecutionState | JobStatus) -> Text:
    return Text(state.name, style=_STYLES.get(state.name, ""))


def states_text(states: Mapping[ExecutionState, int]) -> str:
    """`1 INITIALIZING, 3 RUNNING`, in the order of the states."""
    return ", ".join(f"{states[state]} {state.name}" for state in ExecutionState if states.get(state))


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def size(count: int) -> str:
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def _clock(ms: int) -> str:
    return time.strftime("%d.%m.%Y %H:%M:%S", time.localtime(ms / 1000)) if ms else "-"


def _table(*columns: str, right: Iterable[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in set(right) else "left", overflow="fold")
    return table


# ---- a running job


def progress(details: JobDetails, *, cancelling: bool = False) -> RenderableType:
    now_ms = details.end_ms or time.time() * 1000
    head = Text.assemble("Job ", (details.name, "bold"), "  ", state_text(details.status))
    head.append(f"  {duration(max(0.0, (now_ms - details.start_ms) / 1000))}")
    if details.waiting_for:
        head.append(f"  waiting for {details.waiting_for}", style="yellow")
    if cancelling and not details.status.globally_terminal:
        head.append("  cancelling; Ctrl-C again to leave", style="yellow")
    return Group(head, _vertices(details.vertices))


def _vertices(vertices: Iterable[Vertex]) -> Table:
    counts = ("Records in", "Records out", "Busy")
    table = _table("Vertex", "Tasks", "States", *counts, right=("Tasks", *counts))
    for vertex in vertices:
        metrics = vertex.metrics
        states = Text(", ").join(
            Text(f"{count} {state.name}", style=_STYLES.get(state.name, "")) for state, count in _ordered(vertex.states)
        )
        table.add_row(
            vertex.name,
            str(vertex.parallelism),
            states,
            f"{metrics.records_in:,}",
            f"{metrics.records_out:,}",
            _share(metrics.busy_ms, metrics),
        )
    return table


def _ordered(states: Counter[ExecutionState]) -> Iterator[tuple[ExecutionState, int]]:
    return ((state, states[state]) for state in ExecutionState if states[state])


def _share(part_ms: float, metrics: TaskMetrics) -> str:
    whole_ms = metrics.busy_ms + metrics.idle_ms + metrics.back_pressured_ms
    return f"{part_ms / whole_ms:.0%}" if whole_ms > 0 else "-"


# ---- show


def job(details: JobDetails, *, full: bool = False) -> Iterator[RenderableType]:
    """All that `show` shows, errors first."""
    head = Text.assemble("Job ", (details.name, "bold"), f" ({details.job_id})  ", state_text(details.status))
    if details.waiting_for:
        head.append(f", waiting for {details.waiting_for}", style="yellow")
    yield head
    end_ms = details.end_ms or time.time() * 1000
    yield (
        f"Started {_clock(details.start_ms)}, "
        + (f"ended {_clock(details.end_ms)}, " if details.end_ms else "")
        + f"duration {duration(max(0.0, (end_ms - details.start_ms) / 1000))}"
    )
    for number, error in enumerate(details.exceptions):
        yield ""
        yield exception(error, full=full, title="Error" if number == 0 else "Earlier error")
    if details.vertices:
        yield ""
        yield _vertices(details.vertices)
        for vertex in details.vertices:
            if vertex.subtasks:
                yield ""
                yield _subtasks(vertex)
        yield ""
        yield _operators(details.vertices, full=full)


def exception(error: ErrorInfo, *, full: bool, title: str = "Error") -> RenderableType:
    """The user's traceback first: it is what they can mend."""
    where = ", ".join(filter(None, [error.task_name, error.location, _clock(error.timestamp_ms)]))
    parts: list[RenderableType] = [Text(f"{title} in {where}:" if error.task_name else f"{title} ({where}):", style="bold red")]
    parts.append(Text(error.user_traceback.rstrip() or error.summary))
    if error.user_traceback and error.summary not in error.user_traceback:
        parts.append(Text(error.summary))
    if full and error.traceback:
        parts += [Text("The whole traceback:", style="dim"), Text(error.traceback.rstrip(), style="dim")]
    return Group(*parts)


def _subtasks(vertex: Vertex) -> RenderableType:
    right = ("Records in", "Records out", "Bytes in", "Bytes out", "Busy", "Idle", "Back-pressured", "Late")
    table = _table("Subtask", "Attempt", "State", "Slot", *right, right=right)
    for subtask in vertex.subtasks:
        for attempt in subtask.attempts:
            m = attempt.metrics
            table.add_row(
                f"{subtask.index + 1}/{vertex.parallelism}",
                f"#{attempt.number}",
                state_text(attempt.state),
                _slot(attempt),
                f"{m.records_in:,}",
                f"{m.records_out:,}",
                size(m.bytes_in),
                size(m.bytes_out),
                _share(m.busy_ms, m),
                _share(m.idle_ms, m),
                _share(m.back_pressured_ms, m),
                f"{m.late_records_dropped:,}",
            )
    return Group(Text(vertex.name, style="bold"), table)


def _slot(attempt: Attempt) -> str:
    return f"{attempt.host} {attempt.task_executor_id[:8]}/{attempt.slot_index}" if attempt.task_executor_id else "-"


def _operators(vertices: Iterable[Vertex], *, full: bool) -> Tree:
    tree = Tree("Operators", hide_root=False, guide_style="dim")
    for vertex in vertices:
        branch = tree.add(Text(f"{vertex.name} (slot sharing group {vertex.slot_sharing_group or 'default'})"))
        for operator in vertex.operators:
            leaf = branch.add(_operator(operator.name, operator.kind, operator.uid, operator.runs_on_spark))
            if full and operator.plan:
                leaf.add(Text(operator.plan, style="dim"))
    return tree


def _operator(name: str, kind: str, uid: str, runs_on_spark: bool) -> Text:
    text = Text.assemble(name, (f"  {kind}", "dim"))
    if runs_on_spark:
        text.append("  on Spark", style="cyan")
    if uid:
        text.append(f"  uid {uid}", style="dim")
    return text


# ---- info


def plan(graph: JobGraph) -> Iterator[RenderableType]:
    """A JobGraph: one branch per vertex with its chain, then what comes in."""
    tasks = sum(vertex.parallelism for vertex in graph.vertices)
    counts = f"{len(graph.vertices)} vertices, {tasks} tasks, {_slots(graph)} slots needed"
    yield Text.assemble("Job ", (graph.name, "bold"), f": {counts}")
    names = {vertex.vertex_id: f"[{number}] {vertex.name}" for number, vertex in enumerate(graph.vertices, 1)}
    for vertex in graph.vertices:
        tree = Tree(Text(names[vertex.vertex_id], style="bold"), guide_style="dim")
        tree.add(_placement(vertex))
        chain = tree.add(Text("one operator" if len(vertex.operators) == 1 else f"chain of {len(vertex.operators)} operators"))
        for operator in vertex.operators:
            chain.add(_operator(operator.name, operator.kind, operator.uid, operator.runs_on_spark))
        for edge in (e for e in graph.edges if e.target_vertex_id == vertex.vertex_id):
            how = edge.partitioner.name + (f" by {', '.join(edge.key_columns)}" if edge.key_columns else "")
            kind = f"{edge.pattern.name}, {edge.result_type.name.lower()}"
            tag = f", side output {edge.side_output_tag}" if edge.side_output_tag else ""
            tree.add(Text(f"from {names[edge.source_vertex_id]}: {how} ({kind}{tag})"))
        yield tree


def _placement(vertex: JobVertex) -> Text:
    parts = [f"parallelism {vertex.parallelism} (max {vertex.max_parallelism})"]
    parts.append(f"slot sharing group {vertex.slot_sharing_group}")
    if vertex.co_location_group:
        parts.append(f"co-location group {vertex.co_location_group}")
    if vertex.resource_group:
        parts.append(f"resource group {vertex.resource_group}")
    if not vertex.resources.unknown:
        parts.append(str(vertex.resources))
    return Text(", ".join(parts))


def _slots(graph: JobGraph) -> int:
    """A slot sharing group needs as many slots as its highest parallelism (spec 002)."""
    needed: dict[str, int] = {}
    for vertex in graph.vertices:
        needed[vertex.slot_sharing_group] = max(needed.get(vertex.slot_sharing_group, 0), vertex.parallelism)
    return sum(needed.values())


# ---- the end of a run


def timing(result: JobResult) -> RenderableType:
    """Where the time of a finished job went."""
    assert result.details is not None, "a detached job has no timing here"
    parts = _table("Where the time went", "", right=("",))
    for name, seconds in result.parts_s().items():
        parts.add_row(f"  {name}", duration(max(0.0, seconds)))
    parts.add_row("  from submission to the end", duration(result.duration_s))
    columns = ("Tasks", "Records in", "Records out", "Spark", "Python", "Exchange", "Idle", "Back-pressured")
    vertices = _table("Vertex (times: sum over its tasks)", *columns, right=columns)
    for vertex in result.details.vertices:
        m = vertex.metrics
        times = (m.spark_ms, m.python_ms, m.exchange_ms, m.idle_ms, m.back_pressured_ms)
        vertices.add_row(
            vertex.name,
            str(vertex.parallelism),
            f"{m.records_in:,}",
            f"{m.records_out:,}",
            *(duration(ms / 1000) for ms in times),
        )
    return Group("", parts, "", vertices)


# ---- the cluster


def cluster(state: ClusterState, overview: ClusterOverview, logs: Path) -> Iterator[RenderableType]:
    yield f"Dispatcher {state.dispatcher_address}, ResourceManager {state.resource_manager_address}, version {overview.version}"
    yield f"Running since {_clock(state.started_ms)}, supervisor pid {state.supervisor_pid}, logs in {logs}"
    yield (
        f"Jobs: {overview.jobs_running} running, {overview.jobs_finished} finished,"
        f" {overview.jobs_canceled} canceled, {overview.jobs_failed} failed"
    )
    if overview.resource_manager_problem:
        yield Text(overview.resource_manager_problem, style="bold red")
        return
    missing = f", {overview.slots_missing} missing" if overview.slots_missing else ""
    yield f"Slots: {overview.slots_free} free of {overview.slots_total}, {overview.slots_warm} warm{missing}"
    if overview.task_executors:
        right = ("Pid", "Slots", "Free", "Warm")
        table = _table("TaskExecutor", "Address", "Host", *right, right=right)
        for worker in overview.task_executors:
            table.add_row(
                worker.task_executor_id,
                worker.address,
                worker.host,
                *map(str, (worker.pid, worker.slots, worker.slots_free, worker.slots_warm)),
            )
        yield table
