"""The metadata of a job's complete checkpoints: what they contain, whether the program can resume
from the latest one, and the state that tasks restore from it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from firesteel.common.checkpoints.descriptions import StateDescriptions
from firesteel.common.checkpoints.evolution import changed_states, kept_states
from firesteel.common.checkpoints.metadata import CheckpointedOperator, CheckpointMetadata
from firesteel.common.checkpoints.state import OperatorSnapshot
from firesteel.common.ids import OperatorId, VertexId
from firesteel.common.job_graph import JobGraph
from jobmaster.core.checkpoints.checkpoint import Checkpoint, Kind
from jobmaster.core.checkpoints.recovery import Recovery
from jobmaster.core.checkpoints.restore import assign
from jobmaster.core.commands import OutputOf
from jobmaster.core.execution_graph import ExecutionGraph


class CompletedCheckpoints:
    def __init__(self, graph: ExecutionGraph, recovery: Recovery) -> None:
        self.latest = recovery.latest  # of all kinds; a restarting job restores it
        self._graph = graph
        # Metadata of checkpoints that this master has stored or is storing, and of the latest one.
        self._metadata: dict[int, CheckpointMetadata] = {}
        # The base directories of paths in their metadata; others are in the job's directory.
        self._directories: dict[int, str] = {}
        if recovery.latest is not None:
            self._metadata[recovery.latest.checkpoint_id] = recovery.latest
            if recovery.restored_from:
                self._directories[recovery.latest.checkpoint_id] = recovery.restored_from
        self._key_types: dict[OperatorId, str] = {}
        self._states: dict[OperatorId, StateDescriptions] = {}

    def analyzed(
        self,
        schemas: Mapping[OutputOf, bytes],
        states: Mapping[OperatorId, StateDescriptions],
    ) -> str:
        """Returns why the job cannot resume from its restored checkpoint; empty if it can. `states`
        has the operators whose states are known.
        """
        job = self._graph.job_graph
        self._key_types = _key_types(job, schemas)
        restored = () if self.latest is None else self.latest.operators
        before = {operator.operator_id: operator.states for operator in restored}
        self._states = {
            operator.operator_id: kept_states(
                before.get(operator.operator_id, {}), states.get(operator.operator_id, {})
            )
            for vertex in job.vertices
            for operator in vertex.operators
        }
        changed = _changed_key(job, self._key_types, restored)
        return changed or _changed_operators(job, before, states)

    def storing(self, checkpoint: Checkpoint, timestamp_ms: int) -> CheckpointMetadata:
        """Returns the metadata of a checkpoint that all tasks have acknowledged."""
        if checkpoint.savepoint_path:
            self._directories[checkpoint.checkpoint_id] = checkpoint.savepoint_path
        metadata = self._metadata[checkpoint.checkpoint_id] = self._describe(
            checkpoint, timestamp_ms
        )
        return metadata

    def stored(self, checkpoint_id: int, pending: Collection[int]) -> None:
        """The checkpoint is complete; forgets all others but these."""
        self.latest = self._metadata[checkpoint_id]
        for other in self._metadata.keys() - {checkpoint_id, *pending}:
            del self._metadata[other]
            self._directories.pop(other, None)

    def not_stored(self, checkpoint_id: int) -> None:
        self._metadata.pop(checkpoint_id, None)

    def latest_is_at(self, path: str) -> bool:
        latest = self.latest
        return latest is not None and self._directories.get(latest.checkpoint_id) == path

    def restored(self) -> dict[OperatorId, list[OperatorSnapshot]] | None:
        """Returns the state that each subtask of each operator restores; None: all start empty."""
        latest = self.latest
        if latest is None:
            return None
        now = {
            operator.operator_id: (operator.name, vertex.vertex.parallelism)
            for vertex in self._graph.vertices
            for operator in vertex.vertex.operators
        }
        restored = {}
        for operator in latest.operators:
            if operator.operator_id not in now:
                continue  # its state is discarded, as requested
            name, parallelism = now[operator.operator_id]
            if operator.uid or operator.has_state or operator.finished or operator.name == name:
                restored[operator.operator_id] = assign(operator, parallelism)
            # Otherwise another operator is in its place, and starts without its event time.
        return restored

    def finished_vertices(self, among: Collection[VertexId]) -> frozenset[VertexId]:
        """Returns the vertices, among those that restart, that have nothing to do when the latest
        checkpoint is restored: they and all their producers had finished in it. Empty if that
        applies to all vertices.
        """
        latest = self.latest
        if latest is None:
            return frozenset()
        operators = {o.operator_id for o in latest.operators if o.finished}
        finished: set[VertexId] = set()
        for vertex in self._graph.vertices:  # producers come first
            if vertex.vertex.vertex_id not in among:
                continue
            feeding = self._graph.inputs_of(vertex.vertex.vertex_id)
            if all(o.operator_id in operators for o in vertex.vertex.operators) and all(
                result.producer.vertex.vertex_id in finished for result in feeding
            ):
                finished.add(vertex.vertex.vertex_id)
        return frozenset(finished) if len(finished) < len(among) else frozenset()

    @property
    def restored_from(self) -> str:
        """The base directory of paths in `restored`; empty: the job's directory."""
        latest = self.latest
        return "" if latest is None else self._directories.get(latest.checkpoint_id, "")

    def _describe(self, checkpoint: Checkpoint, timestamp_ms: int) -> CheckpointMetadata:
        plan = checkpoint.plan
        subtasks: dict[OperatorId, dict[int, OperatorSnapshot]] = {}
        for attempt_id, snapshot in checkpoint.snapshots.items():
            subtask = plan.to_acknowledge[attempt_id].vertex.subtask
            for operator in snapshot.operators:
                subtasks.setdefault(operator.operator_id, {})[subtask] = operator
        job = self._graph.job_graph
        return CheckpointMetadata(
            checkpoint_id=checkpoint.checkpoint_id,
            job_id=job.job_id,
            job_name=job.name,
            timestamp_ms=timestamp_ms,
            savepoint=checkpoint.kind is Kind.SAVEPOINT,
            operators=tuple(
                CheckpointedOperator(
                    operator_id=operator.operator_id,
                    uid=operator.uid,
                    name=operator.name,
                    parallelism=vertex.parallelism,
                    max_parallelism=vertex.max_parallelism,
                    finished=(
                        vertex.vertex_id in plan.finished
                        or vertex.vertex_id in checkpoint.finished_before
                    ),
                    coordinator=checkpoint.coordinators.get(operator.operator_id),
                    subtasks=subtasks.get(operator.operator_id, {}),
                    key_type=self._key_types.get(operator.operator_id, ""),
                    states=self._states.get(operator.operator_id, {}),
                )
                for vertex in job.vertices
                for operator in vertex.operators
            ),
        )


def _key_types(graph: JobGraph, schemas: Mapping[OutputOf, bytes]) -> dict[OperatorId, str]:
    """Returns the key types of keyed state by operator, for example "string, int64": state
    restored under keys of a different type would never be found. Operators without keys, or with an
    input of unknown schema, are missing.
    """
    import pyarrow as pa  # takes long: only JobMasters of jobs with checkpoints need it

    found: dict[OperatorId, str] = {}
    vertices = {vertex.vertex_id: vertex for vertex in graph.vertices}
    for edge in graph.edges:
        source = vertices[edge.source_vertex_id].operators[edge.source_operator]
        target = vertices[edge.target_vertex_id].operators[edge.target_operator]
        content = schemas.get(OutputOf(source.operator_id, edge.side_output_tag))
        if not edge.key_columns or not content:
            continue
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(content))
            types = [_without_zone(str(schema.field(name).type)) for name in edge.key_columns]
        except (pa.ArrowInvalid, KeyError):
            continue
        found.setdefault(target.operator_id, ", ".join(types))
    return found


def _without_zone(arrow_type: str) -> str:
    """Ignores the zone of a timestamp type, which affects only how it is displayed."""
    return re.sub(r", tz=[^]]*", ", tz", arrow_type)


def _changed_key(
    graph: JobGraph,
    types: Mapping[OperatorId, str],
    restored: Sequence[CheckpointedOperator],
) -> str:
    """Returns how the program's keys differ from those that it restores; empty if they match."""
    before = {operator.operator_id: operator for operator in restored if operator.keyed}
    for vertex in graph.vertices:
        for operator in vertex.operators:
            kept, now = before.get(operator.operator_id), types.get(operator.operator_id)
            if kept is not None and now and kept.key_type and kept.key_type != now:
                return operator.says(
                    f"the key of {operator.name!r} has the type {now}, and had {kept.key_type} in"
                    " the checkpoint: its state would never be found. Cast the key to the earlier"
                    " type, or give the operator a different uid and discard its state"
                    " (--allow-non-restored-state)"
                )
    return ""


def _changed_operators(
    job: JobGraph,
    before: Mapping[OperatorId, StateDescriptions],
    now: Mapping[OperatorId, StateDescriptions],
) -> str:
    """Returns the problem of the first operator that cannot; empty if all can. Operators whose
    states are unknown until they run are missing in `now`.
    """
    for vertex in job.vertices:
        for operator in vertex.operators:
            was, declared = before.get(operator.operator_id), now.get(operator.operator_id)
            if was and declared is not None and (problem := changed_states(was, declared)):
                uid = f"uid {operator.uid}" if operator.uid else "without a uid"
                return operator.says(
                    f"operator {operator.name!r} ({uid}) does not fit the checkpoint: {problem}."
                    " Or give it a different uid and discard its state (--allow-non-restored-state)"
                )
    return ""
