"""Feeds the autoscaler of a job with the metrics of its tasks, and requests what it decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from firesteel.common.ids import IdSource
from firesteel.common.logs import get_logger
from firesteel.common.rescales import Assessment
from jobmaster.core import events
from jobmaster.core.autoscaler import Autoscaler, AutoscalerSettings, VertexLoad
from jobmaster.core.core import JobMasterCore
from jobmaster.core.execution_graph import ExecutionJobVertex
from jobmaster.series import Attempt, Sample

_log = get_logger(__name__)


class Autoscaling:
    def __init__(
        self,
        settings: AutoscalerSettings,
        core: JobMasterCore,
        ids: IdSource,
        post: Callable[[events.Event], None],
    ) -> None:
        self.decided = ""  # the last decision, in words for users
        self._settings = settings
        self._core = core
        self._ids = ids
        self._post = post
        self._autoscaler = Autoscaler(settings, core.graph.job_graph)

    def sampled(
        self,
        samples: Mapping[str, Sample],
        attempts: Mapping[str, Sequence[Attempt]],
        now: float,
    ) -> None:
        """Takes the samples of the last seconds and the metrics of the current attempts."""
        core = self._core
        if not (core.phase.runs and core.job.all_run and core.job.checkpoints.enabled):
            self._autoscaler.interrupted()
            return
        parallelism = {v.vertex.vertex_id: v.parallelism for v in core.graph.vertices}
        loads = {
            vertex.vertex.vertex_id: self._load(vertex, samples[v], attempts.get(v, ()))
            for vertex in core.graph.vertices
            if (v := vertex.vertex.vertex_id) in samples
        }
        decision = self._autoscaler.observe(loads, parallelism, now)
        if decision is None or not self._settings.enabled:
            return
        self._autoscaler.interrupted()  # it is not repeated before it is measured again
        text, acts = "; ".join(decision.reasons), self._settings.acts
        if text != self.decided:
            _log.info("the autoscaler decides", decision=text, dry_run=not acts)
        self.decided = text if acts else f"{text} (dry run)"
        if acts:
            by_vertex = {str(v): number for v, number in decision.by_vertex.items()}
            self._post(
                events.RescaleRequested(
                    request=self._ids.next(), by_vertex=by_vertex, reason=f"autoscaler: {text}"
                )
            )

    def explain(self, now: float) -> tuple[Assessment, ...]:
        """Returns the autoscaler's conclusions from the measurements so far."""
        return self._autoscaler.explain(now)

    def _load(
        self, vertex: ExecutionJobVertex, sample: Sample, attempts: Sequence[Attempt]
    ) -> VertexLoad:
        values = sample.values
        records_in, records_out = values["records_in"], values["records_out"]
        load = VertexLoad(
            records_per_s=records_in, busy=values["busy"], back_pressured=values["back_pressured"]
        )
        if self._core.graph.inputs_of(vertex.vertex.vertex_id):
            return load
        coordinator = self._core.coordinators.of_source(vertex.vertex)
        backlog = coordinator.backlog() if coordinator is not None else {}
        pending: float | None = backlog.get("pendingRecords")
        if topics := [topic for a in attempts for topic in a.metrics.topics.values()]:
            pending = float(sum(topic.pending_records for topic in topics))
        return replace(
            load,
            records_per_s=max(records_in, records_out),
            pending=pending,
            pending_splits=backlog.get("unassignedSplits"),
            assigned_splits=coordinator.assigned_to_all() if coordinator is not None else 0,
        )
