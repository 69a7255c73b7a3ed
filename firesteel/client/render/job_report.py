"""Renders a job: its JobGraph before it runs, for `firesteel info`; all of it, for `firesteel
show`; and the durations of its parts once it has finished.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from firesteel.client.job_details import Attempt, JobDetails, Vertex
from firesteel.client.render.scaling import rescales
from firesteel.client.render.tables import (
    PLAIN_WIDTH,
    clock,
    new_table,
    one_plan_text,
    operator_text,
    state_text,
    vertex_names,
)
from firesteel.client.render.topics import topics
from firesteel.common.ids import VertexId
from firesteel.common.job_graph import JobEdge, JobGraph, JobVertex
from firesteel.common.states import JobStatus
from firesteel.common.task_metrics import TaskMetrics
from firesteel.common.units import count, counted, duration, short_count, size
from firesteel.errors import ErrorInfo
from firesteel.plan.fusion import fused

_FAILS = frozenset({JobStatus.FAILED, JobStatus.FAILING, JobStatus.RESTARTING})
_FEW_RESCALES = 3  # are shown without --full
_WIDE = 115  # from this width on, tables have all their columns


def job(
    details: JobDetails, *, full: bool = False, width: int = PLAIN_WIDTH
) -> Iterator[RenderableType]:
    """Renders the errors of a failing job first, and those that it has survived last. On a terminal
    narrower than `_WIDE` columns, tables have fewer columns.
    """
    head = Text.assemble(
        "Job ", (details.name, "bold"), f" ({details.job_id})  ", state_text(details.status)
    )
    if details.waiting_for:
        head.append(f", waiting for {details.waiting_for}", style="yellow")
    yield head
    end_ms = details.end_ms or time.time() * 1000
    yield (
        f"Started {clock(details.start_ms)}, "
        + (f"ended {clock(details.end_ms)}, " if details.end_ms else "")
        + f"duration {duration(max(0.0, (end_ms - details.start_ms) / 1000))}"
        + (f", submitted by {details.owner}" if details.owner else "")
    )
    if details.spark_ui:
        yield Text(f"Spark UI: {details.spark_ui}")
    if details.scaling:
        yield Text(f"Autoscaler: {details.scaling}")
    for warning in details.warnings:
        yield Text(f"Warning: {warning}", style="yellow")
    errors = _distinct(details.exceptions)
    fails = details.status in _FAILS
    for number, (error, tasks) in enumerate(errors if fails else ()):
        yield ""
        yield exception(
            error, full=full, title="Error" if number == 0 else "Earlier error", also_in=tasks
        )
    for number, vertex in enumerate(details.vertices, 1):
        yield ""
        yield Text(f"[{number}] {vertex.name}", style="bold")
        yield _of_vertex(vertex, details.vertices, full=full)
        if vertex.subtasks:
            yield Padding(_subtasks(vertex, wide=width >= _WIDE), (0, 0, 0, 2), expand=False)
            for part in topics(vertex, full=full):
                yield Padding(part, (0, 0, 0, 2), expand=False)
    if details.rescales:
        yield ""
        yield Text("Rescales, newest first", style="bold")
        names = {vertex.vertex_id: vertex.name for vertex in details.vertices}
        yield rescales(details.rescales[: None if full else _FEW_RESCALES], names)
    if full and (table := _choices(details.vertices)).row_count:
        yield ""
        yield Text("How operators run", style="bold")
        yield table
    if errors and not fails:
        yield ""
        yield Text("Exception history, newest first", style="bold")
        for error, tasks in errors:
            yield exception(error, full=full, title="Earlier error", also_in=tasks)


def _distinct(errors: Iterable[ErrorInfo]) -> list[tuple[ErrorInfo, list[str]]]:
    """Returns the distinct errors, each with the other tasks that had the same one."""
    causes: dict[tuple[str, str], tuple[ErrorInfo, list[str]]] = {}
    for error in errors:
        _, tasks = causes.setdefault((error.summary, error.user_traceback), (error, []))
        if error is not causes[error.summary, error.user_traceback][0]:
            tasks.append(error.task_name or error.location or "the job")
    return list(causes.values())


def exception(
    error: ErrorInfo, *, full: bool, title: str = "Error", also_in: Sequence[str] = ()
) -> RenderableType:
    """Renders the user's traceback first, because that is what a user can fix."""
    parts: list[RenderableType] = [
        Text(f"{title} in {error.task_name}:" if error.task_name else f"{title}:", style="bold red")
    ]
    parts.append(Text(error.user_traceback.rstrip() or error.summary))
    if error.user_traceback and error.summary not in error.user_traceback:
        parts.append(Text(error.summary))
    parts.append(
        Text(" on ".join(filter(None, [clock(error.timestamp_ms), error.location])), style="dim")
    )
    if also_in:
        parts.append(Text(f"The same in {', '.join(also_in)}.", style="dim"))
    if full and error.traceback:
        parts += [
            Text("The whole traceback:", style="dim"),
            Text(error.traceback.rstrip(), style="dim"),
        ]
    return Group(*parts)


def _choices(vertices: Sequence[Vertex]) -> Table:
    """Renders a row for each operator, or group of operators with one plan."""
    columns = ("Operators", "Read by", "Computed by", "Reason")
    table = new_table(*columns, gives_way=columns)
    for number, vertex in enumerate(vertices, 1):
        for group in _groups([operator.group for operator in vertex.operators]):
            choice = vertex.operators[group[-1]].choice
            if choice is not None:
                names = ", ".join(vertex.operators[index].name for index in group)
                table.add_row(
                    Text(f"[{number}] {names}"),
                    choice.reads,
                    choice.computes,
                    Text(choice.reason),
                )
    return table


_Cells = dict[str, Callable[[TaskMetrics], str]]  # by column


def _subtasks(vertex: Vertex, *, wide: bool) -> RenderableType:
    """Renders the counts of each attempt, then the distribution of its time, then its plans."""
    done: _Cells = {
        "Records in": lambda m: count(m.records_in),
        "Records out": lambda m: count(m.records_out),
    }
    if wide:
        done["Bytes in"], done["Bytes out"] = (
            lambda m: size(m.bytes_in),
            lambda m: size(m.bytes_out),
        )
    attempts = [(subtask, attempt) for subtask in vertex.subtasks for attempt in subtask.attempts]
    if any(attempt.metrics.late_records_dropped for _, attempt in attempts):
        done["Late"] = lambda m: count(m.late_records_dropped)
    if any(attempt.metrics.aligning_ms for _, attempt in attempts):  # part of the idle time
        done["Aligning"] = lambda m: _share(m.aligning_ms, m)
    all_metrics = [attempt.metrics for _, attempt in attempts]
    spent = _time_spent(all_metrics, wide=wide)
    first = new_table("Task", "Attempt" if wide else "#", "State", "Slot", *done, right=done)
    second = new_table("Task", *spent, right=spent)
    on_spark = _on_spark(all_metrics, wide=wide)
    third = new_table("On Spark", *on_spark, right=on_spark)
    for subtask, attempt in attempts:
        name, number, metrics = (
            f"{subtask.index + 1}/{vertex.parallelism}",
            f"#{attempt.number}",
            attempt.metrics,
        )
        cells = (cell(metrics) for cell in done.values())
        first.add_row(name, number, state_text(attempt.state), _slot(attempt, wide=wide), *cells)
        if _whole_ms(metrics) > 0:
            name = f"{name} {number}" if attempt.number else name
            second.add_row(name, *(cell(metrics) for cell in spent.values()))
            if any(m.spark_ms or m.bundles for m in all_metrics):
                third.add_row(name, *(cell(metrics) for cell in on_spark.values()))
    return Group(*(table for table in (first, second, third) if table is first or table.row_count))


def _time_spent(metrics: Sequence[TaskMetrics], *, wide: bool) -> _Cells:
    """Returns fractions of an attempt's time; omits columns without any work."""
    cells: _Cells = {"Time": lambda m: duration(_whole_ms(m) / 1000)} if wide else {}
    for name, part_ms in _WORK.items():
        if any(map(part_ms, metrics)):
            cells[name] = lambda m, part_ms=part_ms: _share(part_ms(m), m)  # type: ignore[misc]
    cells["Busy"], cells["Idle"] = lambda m: _share(m.busy_ms, m), lambda m: _share(m.idle_ms, m)
    cells["Back-pressured" if wide else "Blocked"] = lambda m: _share(m.back_pressured_ms, m)
    return cells


def _on_spark(metrics: Sequence[TaskMetrics], *, wide: bool) -> _Cells:
    """Returns fractions of an attempt's time that add up to Spark's; its bundles and their records;
    its plans, and the number of bundles that a cached plan ran.
    """
    cells: _Cells = {
        "Planning": lambda m: _share(m.spark_planning_ms, m),
        "Running": lambda m: _share(m.spark_running_ms, m),
        "Converting": lambda m: _share(m.spark_converting_ms, m),
    }
    reads = any(m.spark_reading_ms for m in metrics)
    if reads:
        cells["Files"] = lambda m: _share(m.spark_reading_ms, m)
    cells["Bundles"] = lambda m: short_count(m.bundles)
    if wide or not reads:  # both do not fit
        cells["Mean"] = lambda m: short_count(m.bundle_records / max(1, m.bundles))
    if wide:
        cells["Last"] = lambda m: short_count(m.last_bundle_records)
    cells["Plans"] = lambda m: short_count(m.plans_made)
    cells["Cached"] = lambda m: short_count(m.cached_runs)
    return cells


_WORK: dict[str, Callable[[TaskMetrics], float]] = {
    "Spark": lambda m: m.spark_ms,
    "Python": lambda m: m.python_ms,
    "Exchange": lambda m: m.exchange_ms,
}


def _whole_ms(metrics: TaskMetrics) -> float:
    return metrics.busy_ms + metrics.idle_ms + metrics.back_pressured_ms


def _share(part_ms: float, metrics: TaskMetrics) -> str:
    whole_ms = _whole_ms(metrics)
    return f"{part_ms / whole_ms:.0%}" if whole_ms > 0 else "-"


def _slot(attempt: Attempt, *, wide: bool) -> str:
    if not attempt.task_executor_id:
        return "-"
    return f"{attempt.host} " * wide + f"{attempt.task_executor_id[:8]}/{attempt.slot_index}"


def _of_vertex(vertex: Vertex, vertices: Sequence[Vertex], *, full: bool) -> Tree:
    """Renders the vertex's parallelism, inputs and chain."""
    numbers = {other.vertex_id: f"[{number}]" for number, other in enumerate(vertices, 1)}
    parts = [f"parallelism {vertex.parallelism} (max {vertex.max_parallelism})"]
    parts.append(f"slot sharing group {vertex.slot_sharing_group or 'default'}")
    if vertex.input_vertex_ids:
        parts.append(
            f"reads from {', '.join(numbers[vertex_id] for vertex_id in vertex.input_vertex_ids)}"
        )
    tree = Tree(Text(", ".join(parts)), guide_style="dim")
    for group in _groups([operator.group for operator in vertex.operators]):
        members = [vertex.operators[index] for index in group]
        branch = tree
        if len(members) > 1:
            branch = tree.add(Text(one_plan_text(len(members)), style="cyan"))
        for operator in members:
            leaf = branch.add(
                operator_text(operator.name, operator.kind, operator.uid, operator.runs_on_spark)
            )
            if full and operator.plan:
                leaf.add(Text(operator.plan, style="dim"))
    return tree


def _groups(numbers: Sequence[int]) -> list[list[int]]:
    """Returns indices by group, in the order of the groups' first members."""
    groups: dict[int, list[int]] = {}
    for index, number in enumerate(numbers):
        groups.setdefault(number, []).append(index)
    return list(groups.values())


def timing(
    details: JobDetails, *, parts_s: Mapping[str, float], duration_s: float
) -> RenderableType:
    """`parts_s` has seconds by part of the job; `duration_s` is from its submission to its end."""
    parts = new_table("Where the time went", "", right=("",))
    for name, seconds in parts_s.items():
        parts.add_row(f"  {name}", duration(max(0.0, seconds)))
    parts.add_row("  from submission to the end", duration(duration_s))
    columns = ("Records in", "Records out", "Spark", "Python", "Exchange", "Idle", "Blocked")
    vertices = new_table("Vertex", *columns, right=columns)
    for number, vertex in enumerate(details.vertices, 1):
        m = vertex.metrics
        vertices.add_row(
            f"[{number}]",
            count(m.records_in) if m.records_in else "-",
            count(m.records_out) if m.records_out else "-",
            *(
                duration(ms / 1000)
                for ms in (m.spark_ms, m.python_ms, m.exchange_ms, m.idle_ms, m.back_pressured_ms)
            ),
        )
    legend = Text(
        "Times are sums over a vertex's tasks; blocked: waiting for its consumers.",
        style="dim",
    )
    return Group("", parts, "", vertex_names(details.vertices), vertices, legend)


def plan(graph: JobGraph) -> Iterator[RenderableType]:
    """Renders a JobGraph: one branch per vertex, with its chain and its inputs."""
    tasks = sum(vertex.parallelism for vertex in graph.vertices)
    counts = (
        counted(len(graph.vertices), "vertex", "vertices"),
        counted(tasks, "task"),
        f"{counted(_slots(graph), 'slot')} needed",
    )
    yield Text.assemble("Job ", (graph.name, "bold"), f": {', '.join(counts)}")
    names = {
        vertex.vertex_id: f"[{number}] {vertex.name}"
        for number, vertex in enumerate(graph.vertices, 1)
    }
    groups = fused(graph)
    in_edges: dict[VertexId, list[JobEdge]] = {vertex.vertex_id: [] for vertex in graph.vertices}
    for edge in graph.edges:
        in_edges[edge.target_vertex_id].append(edge)
    for vertex in graph.vertices:
        tree = Tree(Text(names[vertex.vertex_id], style="bold"), guide_style="dim")
        tree.add(_placement(vertex))
        chain = tree.add(Text(_chain(vertex, len(groups[vertex.vertex_id]))))
        for group in groups[vertex.vertex_id]:
            branch = (
                chain.add(Text(one_plan_text(len(group)), style="cyan"))
                if 1 < len(group) < len(vertex.operators)
                else chain
            )
            for operator in (vertex.operators[index] for index in group):
                branch.add(
                    operator_text(
                        operator.name, operator.kind, operator.uid, operator.runs_on_spark
                    )
                )
        for edge in in_edges[vertex.vertex_id]:
            how = edge.partitioner.name + (
                f" by {', '.join(edge.key_columns)}" if edge.key_columns else ""
            )
            kind = f"{edge.pattern.name}, {edge.result_type.name.lower()}"
            tag = f", side output {edge.side_output_tag}" if edge.side_output_tag else ""
            tree.add(Text(f"from {names[edge.source_vertex_id]}: {how} ({kind}{tag})"))
        yield tree


def _chain(vertex: JobVertex, plans: int) -> str:
    count = len(vertex.operators)
    if count == 1:
        return "one operator"
    return f"chain of {count} operators" + (", one plan on Spark" if plans == 1 else "")


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
    """Returns the number of slots: a slot sharing group needs as many as its highest
    parallelism.
    """
    needed: dict[str, int] = {}
    for vertex in graph.vertices:
        needed[vertex.slot_sharing_group] = max(
            needed.get(vertex.slot_sharing_group, 0), vertex.parallelism
        )
    return sum(needed.values())
