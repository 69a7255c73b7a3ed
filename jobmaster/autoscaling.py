"""Feeds the autoscaler of a job with the metrics of its tasks, and requests what it decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import structlog

from firesteel.common.ids import IdSource
from jobmaster.core import events
from jobmaster.core.autoscaler import Autoscaler, AutoscalerSettings, VertexLoad
from jobmaster.core.core import JobMasterCore
from jobmaster.series import Attempt, Sample

_log = structlog.get_logger(__name__)


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
            vertex_id: _load(
                samples[vertex_id],
                attempts.get(vertex_id, ()),
                source=not core.graph.inputs_of(vertex_id),
            )
            for vertex_id in parallelism
            if vertex_id in samples
        }
        decision = self._autoscaler.observe(loads, parallelism, now)
        if decision is None:
            return
        self._autoscaler.interrupted()  # it is not repeated before it is measured again
        text = "; ".join(decision.reasons)
        dry_run = self._settings.dry_run
        if text != self.decided:
            _log.info("the autoscaler decides", decision=text, dry_run=dry_run)
        self.decided = f"{text} (dry run)" if dry_run else text
        if not dry_run:
            by_vertex = {str(v): number for v, number in decision.by_vertex.items()}
            self._post(events.RescaleRequested(request=self._ids.next(), by_vertex=by_vertex))


def _load(sample: Sample, attempts: Sequence[Attempt], *, source: bool) -> VertexLoad:
    values = sample.values
    records_in, records_out = values["records_in"], values["records_out"]
    topics = [topic for a in attempts for topic in a.metrics.topics.values()]
    return VertexLoad(
        records_per_s=max(records_in, records_out) if source else records_in,
        busy=values["busy"],
        pending=float(sum(t.pending_records for t in topics)) if source and topics else None,
    )
