"""Jobs, plans and clusters as tables and text."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from firesteel.client.cluster.directory import ClusterState
from firesteel.client.job_details import Attempt, ClusterOverview, JobDetails, TaskMetrics, Vertex
from firesteel.common.job_graph import JobGraph, JobVertex
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.errors import ErrorInfo
from firesteel.plan.fusion import fused

if TYPE_CHECKING:
    from firesteel.client.execution import JobResult

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
_WIDE = 115  # from here on tables have all their columns


def console() -> Console:
    made = Console(highlight=False, markup=False)  # names are the user's: no part of them is markup
    return made if made.is_terminal else Console(highlight=False, markup=False, width=_PLAIN_WIDTH)


def state_text(state: ExecutionState | JobStatus) -> Text:
    return Text(state.name, style=_STYLES.get(state.name, ""))


def states_text(states: Mapping[ExecutionState, int]) -> str:
    """`1 INITIALIZING, 3 RUNNING`, in the order of the states."""
    return ", ".join(
        f"{states[state]} {state.name}" for state in ExecutionState if states.get(state)
    )


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


def amount(count: float) -> str:
    """`1,131`, `12.3 M`: never more than nine characters."""
    if count < 10_000_000:
        return f"{count:,.0f}"
    for unit in ("M", "G", "T"):
        count /= 1000_000 if unit == "M" else 1000
        if count < 1000:
            break
    return f"{count:.1f} {unit}"


def counted(count: int, one: str, many: str = "") -> str:
    """`1 slot`, `2 slots`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def rate(per_s: float) -> str:
    if per_s < 10_000:
        return f"{per_s:,.0f}/s"
    return f"{per_s / 1e6:.1f} M/s" if per_s >= 1e6 else f"{per_s / 1e3:.0f} k/s"


def _table(*columns: str, right: Iterable[str] = (), gives_way: Iterable[str] = ()) -> Table:
    """`gives_way`: the columns that a narrow terminal takes from (see `_cut`); all others keep
    their width.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in set(right) else "left",
            no_wrap=column not in set(gives_way),
            overflow="fold",
        )
    return table


def _cut(text: str) -> Text:
    """Ends in an ellipsis where there is no room for more, instead of going on in the next line."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _names(vertices: Iterable[Vertex]) -> RenderableType:
    """What the numbers of vertices stand for."""
    return Text("\n").join(
        Text(f"[{number}] {vertex.name} ({counted(vertex.parallelism, 'task')})")
        for number, vertex in enumerate(vertices, 1)
    )


# ---- a running job


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What a vertex did lately: since a few seconds ago, or, of an ended job, all the time."""

    records_in_per_s: float = 0.0
    records_out_per_s: float = 0.0
    busy: float = 0.0  # shares of its tasks' time
    idle: float = 0.0
    back_pressured: float = 0.0


def progress(
    details: JobDetails, paces: Mapping[str, Pace], *, cancelling: bool = False
) -> RenderableType:
    """`paces`: by vertex id; a vertex without one has not run long enough to have one."""
    now_ms = details.end_ms or time.time() * 1000
    head = Text.assemble("Job ", (details.name, "bold"), "  ", state_text(details.status))
    head.append(f"  {duration(max(0.0, (now_ms - details.start_ms) / 1000))}")
    if details.waiting_for:
        head.append(f"  waiting for {details.waiting_for}", style="yellow")
    if cancelling and not details.status.globally_terminal:
        head.append("  cancelling; Ctrl-C again to leave", style="yellow")
    return Group(head, _vertices(details.vertices, paces))


def _vertices(vertices: Sequence[Vertex], paces: Mapping[str, Pace]) -> Table:
    counts = ("Records in", "", "Records out", " ")  # with their rates
    table = _table(
        "Vertex", "Tasks", *counts, "Mostly", right=counts, gives_way=("Vertex", "Tasks")
    )
    consumed = {vertex_id for vertex in vertices for vertex_id in vertex.input_vertex_ids}
    for number, vertex in enumerate(vertices, 1):
        metrics, pace = vertex.metrics, paces.get(vertex.vertex_id, Pace())
        states = Text(", ").join(
            Text(f"{count} {state.name}", style=_STYLES.get(state.name, ""))
            for state, count in _ordered(vertex.states)
        )
        table.add_row(
            _cut(f"[{number}] {vertex.name}"),
            states or str(vertex.parallelism),
            *_count(
                metrics.records_in, pace.records_in_per_s, counted=bool(vertex.input_vertex_ids)
            ),
            *_count(
                metrics.records_out, pace.records_out_per_s, counted=vertex.vertex_id in consumed
            ),
            mostly(pace),
        )
    return table


def _count(records: int, per_s: float, *, counted: bool) -> tuple[str, str]:
    """Where nothing comes in or goes out by nature there is nothing to show, rather than zero."""
    if not records and not counted:
        return "-", ""
    return amount(records), rate(per_s) if per_s else ""


def mostly(pace: Pace) -> str:
    """What most of the time goes into: `82% busy`, `95% idle`, `60% blocked` (by back-pressure)."""
    share, word = max((pace.busy, "busy"), (pace.idle, "idle"), (pace.back_pressured, "blocked"))
    return f"{share:.0%} {word}" if share > 0 else ""


def _ordered(states: Counter[ExecutionState]) -> Iterator[tuple[ExecutionState, int]]:
    return ((state, states[state]) for state in ExecutionState if states[state])


def _whole_ms(metrics: TaskMetrics) -> float:
    return metrics.busy_ms + metrics.idle_ms + metrics.back_pressured_ms


def _share(part_ms: float, metrics: TaskMetrics) -> str:
    whole_ms = _whole_ms(metrics)
    return f"{part_ms / whole_ms:.0%}" if whole_ms > 0 else "-"


# ---- show


def job(
    details: JobDetails, *, full: bool = False, width: int = _PLAIN_WIDTH
) -> Iterator[RenderableType]:
    """All that `show` shows, errors first. `width`: columns of the terminal; narrow ones get fewer
    of the table's.
    """
    head = Text.assemble(
        "Job ", (details.name, "bold"), f" ({details.job_id})  ", state_text(details.status)
    )
    if details.waiting_for:
        head.append(f", waiting for {details.waiting_for}", style="yellow")
    yield head
    end_ms = details.end_ms or time.time() * 1000
    yield (
        f"Started {_clock(details.start_ms)}, "
        + (f"ended {_clock(details.end_ms)}, " if details.end_ms else "")
        + f"duration {duration(max(0.0, (end_ms - details.start_ms) / 1000))}"
    )
    for number, (error, tasks) in enumerate(_distinct(details.exceptions)):
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


def _distinct(errors: Iterable[ErrorInfo]) -> list[tuple[ErrorInfo, list[str]]]:
    """Errors with the other tasks that had the very same."""
    found: dict[tuple[str, str], tuple[ErrorInfo, list[str]]] = {}
    for error in errors:
        _, tasks = found.setdefault((error.summary, error.user_traceback), (error, []))
        if error is not found[error.summary, error.user_traceback][0]:
            tasks.append(error.task_name or error.location or "the job")
    return list(found.values())


def exception(
    error: ErrorInfo, *, full: bool, title: str = "Error", also_in: Sequence[str] = ()
) -> RenderableType:
    """The user's traceback first: it is what they can mend."""
    parts: list[RenderableType] = [
        Text(f"{title} in {error.task_name}:" if error.task_name else f"{title}:", style="bold red")
    ]
    parts.append(Text(error.user_traceback.rstrip() or error.summary))
    if error.user_traceback and error.summary not in error.user_traceback:
        parts.append(Text(error.summary))
    parts.append(
        Text(" on ".join(filter(None, [_clock(error.timestamp_ms), error.location])), style="dim")
    )
    if also_in:
        parts.append(Text(f"The same in {', '.join(also_in)}.", style="dim"))
    if full and error.traceback:
        parts += [
            Text("The whole traceback:", style="dim"),
            Text(error.traceback.rstrip(), style="dim"),
        ]
    return Group(*parts)


_Cells = dict[str, Callable[[TaskMetrics], str]]  # by column


def _subtasks(vertex: Vertex, *, wide: bool) -> RenderableType:
    """What each attempt has done, and below it where its time went."""
    done: _Cells = {
        "Records in": lambda m: amount(m.records_in),
        "Records out": lambda m: amount(m.records_out),
    }
    if wide:
        done["Bytes in"], done["Bytes out"] = (
            lambda m: size(m.bytes_in),
            lambda m: size(m.bytes_out),
        )
    attempts = [(subtask, attempt) for subtask in vertex.subtasks for attempt in subtask.attempts]
    if any(attempt.metrics.late_records_dropped for _, attempt in attempts):
        done["Late"] = lambda m: amount(m.late_records_dropped)
    if any(attempt.metrics.aligning_ms for _, attempt in attempts):  # a part of the idle time
        done["Aligning"] = lambda m: _share(m.aligning_ms, m)
    spent = _time_spent([attempt.metrics for _, attempt in attempts], wide=wide)
    first = _table("Task", "Attempt" if wide else "#", "State", "Slot", *done, right=done)
    second = _table("Task", *spent, right=spent)
    for subtask, attempt in attempts:
        name, number, metrics = (
            f"{subtask.index + 1}/{vertex.parallelism}",
            f"#{attempt.number}",
            attempt.metrics,
        )
        cells = (cell(metrics) for cell in done.values())
        first.add_row(name, number, state_text(attempt.state), _slot(attempt, wide=wide), *cells)
        if _whole_ms(metrics) > 0:
            second.add_row(
                f"{name} {number}" if attempt.number else name,
                *(cell(metrics) for cell in spent.values()),
            )
    return Group(first, second) if second.row_count else first


def _time_spent(metrics: Sequence[TaskMetrics], *, wide: bool) -> _Cells:
    """Shares of an attempt's time, and how it was cut into bundles; no columns for kinds of work
    that there were not.
    """
    cells: _Cells = {"Time": lambda m: duration(_whole_ms(m) / 1000)} if wide else {}
    for name, part_ms in _WORK.items():
        if any(map(part_ms, metrics)):
            cells[name] = lambda m, part_ms=part_ms: _share(part_ms(m), m)  # type: ignore[misc]
    cells["Busy"], cells["Idle"] = lambda m: _share(m.busy_ms, m), lambda m: _share(m.idle_ms, m)
    cells["Back-pressured" if wide else "Blocked"] = lambda m: _share(m.back_pressured_ms, m)
    if any(m.bundles for m in metrics):
        cells["Bundles"] = lambda m: _short(m.bundles)
        cells["Last"] = lambda m: _short(m.last_bundle_records)
        cells["Mean"] = lambda m: _short(m.bundle_records / max(1, m.bundles))
    return cells


_WORK: dict[str, Callable[[TaskMetrics], float]] = {
    "Spark": lambda m: m.spark_ms,
    "Python": lambda m: m.python_ms,
    "Exchange": lambda m: m.exchange_ms,
}


def _short(count: float) -> str:
    """`1,131`, `65.5 k`, `4.0 M`: never more than seven characters."""
    if count < 10_000:
        return f"{count:,.0f}"
    return f"{count / 1e3:.1f} k" if count < 999_950 else f"{count / 1e6:.1f} M"


def _slot(attempt: Attempt, *, wide: bool) -> str:
    if not attempt.task_executor_id:
        return "-"
    return f"{attempt.host} " * wide + f"{attempt.task_executor_id[:8]}/{attempt.slot_index}"


def _of_vertex(vertex: Vertex, vertices: Sequence[Vertex], *, full: bool) -> Tree:
    """Where it runs, what it consumes, and its chain."""
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
            branch = tree.add(Text(_one_plan(len(members)), style="cyan"))
        for operator in members:
            leaf = branch.add(
                _operator(operator.name, operator.kind, operator.uid, operator.runs_on_spark)
            )
            if full and operator.plan:
                leaf.add(Text(operator.plan, style="dim"))
    return tree


def _groups(numbers: Sequence[int]) -> list[list[int]]:
    """Indices by group, in the order of the groups' first members."""
    groups: dict[int, list[int]] = {}
    for index, number in enumerate(numbers):
        groups.setdefault(number, []).append(index)
    return list(groups.values())


def _one_plan(operators: int) -> str:
    return f"one plan on Spark of {operators} operators"


def _operator(name: str, kind: str, uid: str, runs_on_spark: bool) -> Text:
    text = Text(name)
    if kind and kind not in name:
        text.append(f"  {kind}", "dim")
    if runs_on_spark:
        text.append("  on Spark", style="cyan")
    if uid and uid != name:
        text.append(f"  uid {uid}", style="dim")
    return text


# ---- info


def plan(graph: JobGraph) -> Iterator[RenderableType]:
    """A JobGraph: one branch per vertex with its chain, then what comes in."""
    tasks = sum(vertex.parallelism for vertex in graph.vertices)
    counts = f"{counted(len(graph.vertices), 'vertex', 'vertices')}, {counted(tasks, 'task')}, {counted(_slots(graph), 'slot')} needed"
    yield Text.assemble("Job ", (graph.name, "bold"), f": {counts}")
    names = {
        vertex.vertex_id: f"[{number}] {vertex.name}"
        for number, vertex in enumerate(graph.vertices, 1)
    }
    for vertex in graph.vertices:
        tree = Tree(Text(names[vertex.vertex_id], style="bold"), guide_style="dim")
        tree.add(_placement(vertex))
        chain = tree.add(Text(_chain(graph, vertex)))
        for group in fused(graph, vertex):
            branch = (
                chain.add(Text(_one_plan(len(group)), style="cyan"))
                if 1 < len(group) < len(vertex.operators)
                else chain
            )
            for operator in (vertex.operators[index] for index in group):
                branch.add(
                    _operator(operator.name, operator.kind, operator.uid, operator.runs_on_spark)
                )
        for edge in (e for e in graph.edges if e.target_vertex_id == vertex.vertex_id):
            how = edge.partitioner.name + (
                f" by {', '.join(edge.key_columns)}" if edge.key_columns else ""
            )
            kind = f"{edge.pattern.name}, {edge.result_type.name.lower()}"
            tag = f", side output {edge.side_output_tag}" if edge.side_output_tag else ""
            tree.add(Text(f"from {names[edge.source_vertex_id]}: {how} ({kind}{tag})"))
        yield tree


def _chain(graph: JobGraph, vertex: JobVertex) -> str:
    count = len(vertex.operators)
    if count == 1:
        return "one operator"
    return f"chain of {count} operators" + (
        ", one plan on Spark" if len(fused(graph, vertex)) == 1 else ""
    )


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
        needed[vertex.slot_sharing_group] = max(
            needed.get(vertex.slot_sharing_group, 0), vertex.parallelism
        )
    return sum(needed.values())


# ---- the end of a run


def timing(result: JobResult) -> RenderableType:
    """Where the time of a finished job went."""
    assert result.details is not None, "a detached job has no timing here"
    parts = _table("Where the time went", "", right=("",))
    for name, seconds in result.parts_s().items():
        parts.add_row(f"  {name}", duration(max(0.0, seconds)))
    parts.add_row("  from submission to the end", duration(result.duration_s))
    columns = ("Records in", "Records out", "Spark", "Python", "Exchange", "Idle", "Blocked")
    vertices = _table("Vertex", *columns, right=columns)
    for number, vertex in enumerate(result.details.vertices, 1):
        m = vertex.metrics
        vertices.add_row(
            f"[{number}]",
            amount(m.records_in) if m.records_in else "-",
            amount(m.records_out) if m.records_out else "-",
            *(
                duration(ms / 1000)
                for ms in (m.spark_ms, m.python_ms, m.exchange_ms, m.idle_ms, m.back_pressured_ms)
            ),
        )
    legend = Text(
        "Times are sums over a vertex's tasks; blocked: waiting for whoever consumes its output.",
        style="dim",
    )
    return Group("", parts, "", _names(result.details.vertices), vertices, legend)


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
        table = _table(
            "TaskExecutor", "Address", "Host", *right, right=right, gives_way=("TaskExecutor",)
        )
        for worker in overview.task_executors:
            table.add_row(
                _cut(worker.task_executor_id),
                worker.address,
                worker.host,
                *map(str, (worker.pid, worker.slots, worker.slots_free, worker.slots_warm)),
            )
        yield table
