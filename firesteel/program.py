"""A program: its operators, its configuration and its files.

Environment and streams add to it; `execute` runs it as configured by `firesteel run`, or embedded.

A sink runs in one job. A job consists of the sinks that no job has run yet and all operators
upstream of them; a stream that leads to no sink is in no job.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firesteel.common.config import Configuration, options
from firesteel.common.ids import JobId, random_id
from firesteel.common.job_graph import JobGraph, ResultType
from firesteel.common.resources import ResourceProfile
from firesteel.connectors.table_source import TableSource
from firesteel.errors import InvalidProgram
from firesteel.operators import SourceSpec
from firesteel.plan.event_time import (
    check_event_times,
    growing_states,
    late_between_partitions,
)
from firesteel.plan.job_graph_generator import build_job_graph, operator_id_of
from firesteel.plan.local_modules import local_modules
from firesteel.plan.local_rows import LocalTable, written
from firesteel.plan.runtime_mode import (
    BATCH,
    check_ends,
    due_at_the_end,
    is_batch,
    never_committed,
)
from firesteel.plan.shipping import Shipment
from firesteel.plan.source_lines import place_of_call
from firesteel.plan.stream_graph import StreamGraph, StreamNode

if TYPE_CHECKING:
    from firesteel.client.collected import BatchKind
    from firesteel.client.execution import JobClient, JobResult
    from firesteel.client.execution_context import ExecutionContext


MAX_INLINE_BYTES = 256 * 1024  # of a table that is part of the JobGraph, which is sent in messages


class Program:
    """The state of one Environment."""

    def __init__(self) -> None:
        self.graph = StreamGraph()
        self.configuration: dict[str, str] = {}
        self.resource_groups: dict[str, ResourceProfile] = {}
        self.files: list[str] = []
        self.archives: list[str] = []
        self.requirements: str | None = None
        self.modules: set[str] = set()  # local modules to ship besides those of its functions
        self._temporary: Path | None = None
        self._executed: set[StreamNode] = set()  # the operators of all submitted jobs
        from firesteel.client.execution_context import current

        if (context := current()) is not None:
            context.describes(self.graph)

    def table_source(self, local: LocalTable) -> TableSource:
        """Returns a source of the rows of a table. A large table is written to a file, which is
        shipped with the jobs of the program.
        """
        import pyarrow as pa  # programs with files do without it

        content, file = b"", ""
        if local.table.nbytes <= MAX_INLINE_BYTES:
            buffer = pa.BufferOutputStream()
            batches = written(local.table, buffer)
            content = buffer.getvalue().to_pybytes()
        else:
            path = self._folder() / f"{random_id()}.arrow"
            batches = written(local.table, path)
            self.files.append(str(path))
            file = path.name
        return TableSource(
            local.schema,
            batches,
            content=content,
            file=file,
            localize=local.localize,
            ambiguous=local.ambiguous,
        )

    def _folder(self) -> Path:
        """Returns a folder for files of this program, which is removed with it."""
        if self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="firesteel-program-"))
            weakref.finalize(self, shutil.rmtree, self._temporary, ignore_errors=True)
        return self._temporary

    def resource_profile(self, group: str) -> ResourceProfile:
        if group not in self.resource_groups:
            known = ", ".join(sorted(self.resource_groups)) or "none yet"
            raise InvalidProgram(
                f"there is no resource group {group!r} (registered: {known});"
                f" call env.resource_group({group!r}, ...) first"
            )
        return self.resource_groups[group]

    def job_graph(self, job_name: str, *, overrides: dict[str, str] | None = None) -> JobGraph:
        """Returns the JobGraph of the job that `execute` would run now. `overrides` take precedence
        over the program's configuration.

        Raises InvalidProgram if no sink is left to run.
        """
        return self._job_graph(self._pending(), job_name, overrides, Shipment())

    def execute(self, job_name: str) -> JobResult:
        """Runs the job. Raises JobFailed, JobCanceled, or InvalidProgram if no sink is left to
        run.
        """
        from firesteel.client.execution import run_job  # gRPC: describing a program needs none

        return run_job(*self._submission(job_name))

    def execute_async(self, job_name: str) -> JobClient:
        """Submits the job. Raises InvalidProgram if no sink is left to run."""
        from firesteel.client.execution import submit_job

        return submit_job(*self._submission(job_name))

    def _submission(self, job_name: str) -> tuple[JobGraph, ExecutionContext, Callable[[], None]]:
        """Returns the next job, how to run it, and a function to call once the cluster has it."""
        pending = self._pending()
        for surprise in (*self._unread(), *self._read_again(pending)):
            _warn(surprise)
        graph, context = self._shipped(pending, job_name)
        return graph, context, lambda: self._executed.update(pending.nodes)

    def collect(
        self, job_name: str, sink: StreamNode, kind: BatchKind | None, limit: int | None
    ) -> Any:
        """Runs the program with `sink`, a CollectSink that belongs to this job only.
        Without `kind`, returns the rows as a table, otherwise CollectedBatches once the job is
        submitted. The job is cancelled after `limit` rows.
        """
        from firesteel.client.collected import first_rows, run_collecting
        from firesteel.client.execution import run_job

        try:
            pending = self._pending()
            graph, context = self._shipped(pending, job_name)
            operator_id = operator_id_of(sink)

            def submitted() -> None:
                self._executed.update(pending.nodes)

            if kind is None and limit is None:
                return run_job(graph, context, submitted).table(operator_id)
            batches = run_collecting(graph, operator_id, context, kind or "arrow", submitted, limit)
            return first_rows(batches, limit) if kind is None and limit is not None else batches
        finally:
            self._executed.add(sink)  # even if no job ran: its rows would be unread

    # -- inside

    def _pending(self) -> StreamGraph:
        """Returns the operators of the next job."""
        if not self.graph.nodes:
            raise InvalidProgram("the program has no operators: start with env.from_source(...)")
        sinks = [node for node in self.graph.nodes if node.is_sink]
        pending = [sink for sink in sinks if sink not in self._executed]
        if pending:
            return self.graph.leading_to(pending)
        unread = f"the rows of {_listed(self._ends())} go nowhere; {_MEND}"
        if not sinks:
            raise InvalidProgram(f"the program has no sink: {unread}")
        raise InvalidProgram(
            "there is nothing to run: earlier jobs of this environment have run all of its sinks; "
            + (unread if self._ends() else "add one, or build the program in a new Environment")
        )

    def _ends(self) -> list[StreamNode]:
        return [node for node in self.graph.ends() if not node.is_sink]

    def _unread(self) -> Iterable[str]:
        if ends := self._ends():
            yield f"the rows of {_listed(ends)} go nowhere, so nothing computes them; {_MEND}"

    def _read_again(self, pending: StreamGraph) -> Iterable[str]:
        again = [node for node in pending.nodes if node.is_source and node in self._executed]
        if again:
            yield (
                f"this job reads {_listed(again)} from the start, as an earlier job of this"
                " environment did: a job does not resume where another one ended; to read once,"
                " add all sinks before the first execute()"
            )

    def _shipped(self, pending: StreamGraph, job_name: str) -> tuple[JobGraph, ExecutionContext]:
        """Returns the job and how to run it, including the modules that its functions need."""
        from firesteel.client.files import program_modules

        context, shipment = self._context(), Shipment()
        graph = self._job_graph(pending, job_name, context.overrides, shipment)
        _warn_of_growth(graph, pending)
        limit_bytes = Configuration.load(overrides=graph.config).get(options.MODULES_LIMIT)
        modules = program_modules(local_modules(shipment.modules | self.modules), limit_bytes)
        if modules.left_behind:
            _warn(modules.left_behind)
        return graph, context.with_modules(modules)

    def _job_graph(
        self,
        pending: StreamGraph,
        job_name: str,
        overrides: dict[str, str] | None,
        shipment: Shipment,
    ) -> JobGraph:
        own = {**self.configuration, **(overrides or {})}
        conf = Configuration.load(overrides=own)
        for unknown in Configuration(self.configuration).warnings:
            _warn(unknown)
        if secrets := Configuration(own).secrets():
            raise InvalidProgram(
                f"{min(secrets)} belongs to the cluster's configuration, not to that of a job,"
                " which all users can read: set it in config.yaml, or with -D when starting the"
                " cluster"
            )
        batch = is_batch(pending, conf)
        blocking = batch and conf.get(options.BATCH_SHUFFLE_MODE) == "ALL_EXCHANGES_BLOCKING"
        result_type = ResultType.BLOCKING if blocking else ResultType.PIPELINED
        for node in pending.nodes:
            if isinstance(node.spec, SourceSpec) and node.spec.source.ignored_options:
                _warn(f"{node}: {node.spec.source.ignored_options}")
        if not batch:
            check_ends(pending)
            check_event_times(pending)
            for surprise in late_between_partitions(pending):
                _warn(surprise)
            if not conf.get(options.CHECKPOINT_INTERVAL):
                for surprise in never_committed(pending):
                    _warn(surprise)
        else:
            if conf.get(options.CHECKPOINT_INTERVAL):
                _warn(
                    "a job in batch mode takes no checkpoints:"
                    f" {options.CHECKPOINT_INTERVAL.key} has no effect"
                )
            for surprise in due_at_the_end(pending, result_type):
                _warn(surprise)
            own |= {options.RUNTIME_MODE.key: BATCH, options.CHECKPOINT_INTERVAL.key: "0 s"}
        return build_job_graph(
            pending,
            job_id=JobId(random_id()),
            name=job_name,
            default_parallelism=conf.get(options.PARALLELISM),
            default_max_parallelism=conf.get(options.MAX_PARALLELISM)
            if conf.is_set(options.MAX_PARALLELISM)
            else None,
            chaining_enabled=conf.get(options.OPERATOR_CHAINING),
            # not the whole configuration: the client's paths mean nothing to the job
            config=own,
            batch=batch,
            result_type=result_type,
            shipment=shipment,
        )

    def _context(self) -> ExecutionContext:
        from firesteel.client.execution_context import ExecutionContext, current

        context = current() or ExecutionContext.embedded()
        return context.with_files(self.files, self.archives, self.requirements)


_MEND = (
    "end a stream with sink_to(...), print(), foreach_batch(...) or execute_and_collect(), or with"
    " sink_to(DiscardSink()) if its operators write themselves"
)


def _listed(nodes: list[StreamNode]) -> str:
    return ", ".join(map(str, nodes))


def _warn_of_growth(graph: JobGraph, pending: StreamGraph) -> None:
    if not graph.batch:  # or all sources end
        for growing in growing_states(pending):
            _warn(growing)


def _warn(message: str) -> None:
    place = place_of_call()
    warnings.warn_explicit(message, UserWarning, place.file, place.line)
