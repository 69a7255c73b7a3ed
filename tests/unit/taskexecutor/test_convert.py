"""A JobMaster's messages reach the slots that they address, complete."""

from __future__ import annotations

from firesteel._proto import common_pb2, job_graph_pb2, job_master_pb2, tasks_pb2
from firesteel.common.config import Configuration
from taskexecutor.convert import from_job_master
from taskexecutor.core import events


def vertex(vertex_id: str) -> tasks_pb2.VertexDeployment:
    return tasks_pb2.VertexDeployment(vertex=job_graph_pb2.JobVertex(vertex_id=vertex_id))


def test_each_slots_part_of_a_deployment_says_all_that_the_whole_says() -> None:
    submit = tasks_pb2.SubmitTasks(
        job_id="j",
        job_master_epoch=3,
        job_name="a job",
        vertices=[vertex("source"), vertex("sink")],
        locations=[b"where results are"],
        tasks=[
            tasks_pb2.TaskDeployment(attempt_id="a", vertex_id="source", allocation_id="1"),
            tasks_pb2.TaskDeployment(attempt_id="b", vertex_id="sink", allocation_id="2"),
            tasks_pb2.TaskDeployment(attempt_id="c", vertex_id="sink", allocation_id="1"),
        ],
        config={"a.key": "a value"},
        blobs=[common_pb2.BlobRef(hash="0" * 32, name="u.py")],
        dispatcher_address="here:1",
        checkpoint_directory="/checkpoints",
        restored_directory="/savepoints/savepoint-1",
        unaligned_checkpoints=True,
        state_backend="rocksdb",
        inline_bytes=20_480,
        recovers=True,
    )
    fields = {field.name for field in submit.DESCRIPTOR.fields}
    assert {field.name for field, _ in submit.ListFields()} == fields, "say something of each"
    message = job_master_pb2.JobMasterToTaskExecutor(job_id="j", job_master_epoch=3, submit=submit)
    event = from_job_master(message, Configuration({}))
    assert isinstance(event, events.TasksSubmitted)
    for part, attempts, vertices in zip(
        event.parts, (["a", "c"], ["b"]), (["source", "sink"], ["sink"]), strict=True
    ):
        said = part.message.submit
        assert [task.attempt_id for task in said.tasks] == attempts
        assert [v.vertex.vertex_id for v in said.vertices] == vertices
        for name in fields - {"tasks", "vertices"}:
            assert getattr(said, name) == getattr(submit, name), name
