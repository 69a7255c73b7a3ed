"""From a SubmitTasks message to the configurations of its tasks."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from firesteel._proto import tasks_pb2
from firesteel.common.ids import AttemptId, JobId
from firesteel.common.rpc.convert import edge_from_proto, vertex_from_proto
from firesteel.errors import FiresteelError
from taskexecutor.executor.analysis.analyze import AnalyzedOperator
from taskexecutor.executor.exchange import Locations
from taskexecutor.executor.task import TaskConfig


def task_configs(
    submit: tasks_pb2.SubmitTasks, deployments: Sequence[tasks_pb2.TaskDeployment]
) -> list[TaskConfig]:
    """One configuration per deployment. Raises FiresteelError for a message that does not hold
    together.
    """
    locations = {
        parsed.result_id: parsed
        for parsed in map(tasks_pb2.ResultLocations.FromString, submit.locations)
    }
    vertices = {described.vertex.vertex_id: described for described in submit.vertices}
    config = dict(submit.config)
    return [
        _task_config(submit, deployment, vertices, locations, config) for deployment in deployments
    ]


def _task_config(
    submit: tasks_pb2.SubmitTasks,
    deployment: tasks_pb2.TaskDeployment,
    vertices: dict[str, tasks_pb2.VertexDeployment],
    locations: dict[str, tasks_pb2.ResultLocations],
    config: dict[str, str],
) -> TaskConfig:
    described = vertices.get(deployment.vertex_id)
    if described is None:
        raise FiresteelError(
            f"JobMaster: the deployment of {deployment.attempt_id} lacks its vertex {deployment.vertex_id}"
        )
    in_edges = []
    for edge, producers in zip(described.in_edges, described.in_parallelism, strict=True):
        found = locations.get(edge.result_id)
        if found is None:
            raise FiresteelError(
                f"JobMaster: the deployment of {deployment.attempt_id} lacks the locations of {edge.result_id}"
            )
        where = Locations(
            addresses=tuple(found.addresses),
            address_index=tuple(found.address_index),
            attempts=tuple(found.attempt),
        )
        in_edges.append((edge_from_proto(edge), producers, where))
    out_edges = [
        (edge_from_proto(edge), consumers, max_parallelism)
        for edge, consumers, max_parallelism in zip(
            described.out_edges,
            described.out_parallelism,
            described.out_max_parallelism,
            strict=True,
        )
    ]
    return TaskConfig(
        job_id=JobId(submit.job_id),
        job_name=submit.job_name,
        vertex=vertex_from_proto(described.vertex),
        subtask=deployment.subtask,
        attempt=deployment.attempt,
        attempt_id=AttemptId(deployment.attempt_id),
        in_edges=in_edges,
        out_edges=out_edges,
        output_schemas=_schemas(described.output_schemas),
        input_schemas=_schemas(described.input_schemas),
        config=config,
    )


def _schemas(serialised: Sequence[bytes]) -> tuple[pa.Schema | None, ...]:
    return tuple(
        pa.ipc.read_schema(pa.py_buffer(schema)) if schema else None for schema in serialised
    )


def analyzed_to_proto(operator: AnalyzedOperator) -> tasks_pb2.OperatorSchema:
    return tasks_pb2.OperatorSchema(
        operator_id=operator.operator_id,
        schema=b"" if operator.schema is None else bytes(operator.schema.serialize()),
        plan=operator.plan,
        side_schemas={
            tag: bytes(schema.serialize()) for tag, schema in operator.side_schemas.items()
        },
    )
