"""A program: its operators, its configuration and its files.

Environment and streams add to it; `execute` runs it as `firesteel run` decides, or embedded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from firesteel.common.config import Configuration, options
from firesteel.common.ids import JobId, random_id
from firesteel.common.job_graph import JobGraph
from firesteel.common.resources import ResourceProfile
from firesteel.errors import InvalidProgram
from firesteel.plan.job_graph_generator import build_job_graph, operator_id_of
from firesteel.plan.stream_graph import StreamGraph, StreamNode

if TYPE_CHECKING:
    from firesteel.client.collected import BatchKind, CollectedBatches
    from firesteel.client.execution import JobResult
    from firesteel.client.execution_context import ExecutionContext


class Program:
    """One per Environment."""

    def __init__(self) -> None:
        self.graph = StreamGraph()
        self.configuration: dict[str, str] = {}
        self.resource_groups: dict[str, ResourceProfile] = {}
        self.files: list[str] = []
        self.archives: list[str] = []
        self.requirements: str | None = None

    def resource_profile(self, group: str) -> ResourceProfile:
        if group not in self.resource_groups:
            known = ", ".join(sorted(self.resource_groups)) or "none yet"
            raise InvalidProgram(
                f"there is no resource group {group!r} (registered: {known});"
                f" call env.resource_group({group!r}, ...) first"
            )
        return self.resource_groups[group]

    def job_graph(self, job_name: str, *, overrides: dict[str, str] | None = None) -> JobGraph:
        """`overrides` win over the program's own configuration."""
        own = {**self.configuration, **(overrides or {})}
        conf = Configuration.load(overrides=own)
        return build_job_graph(
            self.graph,
            job_id=JobId(random_id()),
            name=job_name,
            default_parallelism=conf.get(options.PARALLELISM),
            default_max_parallelism=conf.get(options.MAX_PARALLELISM),
            chaining_enabled=conf.get(options.OPERATOR_CHAINING),
            # Not the whole configuration: paths on the client mean nothing to the job.
            config=own,
        )

    def execute(self, job_name: str) -> JobResult:
        """Raises JobFailed or JobCanceled."""
        from firesteel.client.execution import run_job  # gRPC: describing a program needs none

        context = self._context()
        return run_job(self.job_graph(job_name, overrides=context.overrides), context)

    def execute_collecting(
        self, job_name: str, sink: StreamNode, kind: BatchKind
    ) -> CollectedBatches[Any]:
        """Returns when the job is submitted."""
        from firesteel.client.collected import run_collecting

        context = self._context()
        graph = self.job_graph(job_name, overrides=context.overrides)
        return run_collecting(graph, operator_id_of(sink), context, kind)

    def _context(self) -> ExecutionContext:
        from firesteel.client.execution_context import ExecutionContext, current

        context = current() or ExecutionContext.embedded()
        return context.with_files(self.files, self.archives, self.requirements)
