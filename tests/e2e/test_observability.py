"""Metrics, logs, health and reflection, as an operator's tools see them."""

from __future__ import annotations

import re
import urllib.request

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from firesteel.states import ExecutionState

from .conftest import Session, eventually, services
from .jobs import endless


def metrics_of(process: psutil.Process) -> str:
    """What the process serves to Prometheus, on whichever of its ports that is."""
    for connection in process.net_connections("tcp"):
        if connection.status != psutil.CONN_LISTEN:
            continue
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{connection.laddr.port}/metrics", timeout=2) as answer:
                return answer.read().decode()
        except OSError:
            continue
        except Exception:  # not HTTP: the gRPC port
            continue
    raise AssertionError(f"process {process.pid} serves no metrics")


def test_every_process_serves_prometheus_metrics(session: Session) -> None:
    job_id = session.submit(endless(), "measured")
    session.wait_until(job_id, lambda d: set(d.states) == {ExecutionState.RUNNING})
    (dispatcher,) = services(session, "dispatcher")
    (manager,) = services(session, "resourcemanager")
    workers = services(session, "taskexecutor")
    assert re.search(r"^flink_jobmanager_numRunningJobs\S* 1(\.0)?$", metrics_of(dispatcher), re.M)
    served = metrics_of(manager)
    assert re.search(r"^flink_jobmanager_taskSlotsTotal\S* 4(\.0)?$", served, re.M)
    assert re.search(r"^flink_jobmanager_numRegisteredTaskManagers\S* 2(\.0)?$", served, re.M)
    assert any("flink_jobmanager_job_uptime" in metrics_of(p) for p in services(session, "jobmaster"))

    def of_tasks() -> str:
        return "\n".join(map(metrics_of, workers))

    eventually(lambda: "flink_taskmanager_job_task_numRecordsIn{" in of_tasks(), "the tasks' metrics")
    served = of_tasks()
    for name in (
        "numRecordsOut",
        "numBytesInPerSecond",
        "busyTimeMsPerSecond",
        "sparkTimeMsPerSecond",
        "isBackPressured",
        "currentInputWatermark",
    ):
        assert f"flink_taskmanager_job_task_{name}{{" in served
    line = next(li for li in served.splitlines() if li.startswith("flink_taskmanager_job_task_numRecordsIn{"))
    for label in (
        "host=",
        "tm_id=",
        f'job_id="{job_id}"',
        'job_name="measured"',
        "task_name=",
        "subtask_index=",
        "task_attempt_num=",
    ):
        assert label in line
    assert "# TYPE flink_taskmanager_job_task_numRecordsIn gauge" in served
    assert "flink_taskmanager_Status_JVM_Memory_Heap_Used" in served
    session.client.cancel(job_id)


def test_health_and_reflection(session: Session) -> None:
    for address, service in (
        (session.address, "firesteel.v1.Dispatcher"),
        (session.client.cluster_overview().resource_manager_address, "firesteel.v1.ResourceManager"),
    ):
        with grpc.insecure_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
            assert health.status == health_pb2.HealthCheckResponse.SERVING
            ask = reflection_pb2.ServerReflectionRequest(list_services="")
            (answer,) = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([ask]), timeout=5)
            assert service in {s.name for s in answer.list_services_response.service}


def test_logs_carry_job_vertex_subtask_and_attempt(session: Session) -> None:
    job_id = session.submit(endless(), "logged")
    session.wait_until(job_id, lambda d: set(d.states) == {ExecutionState.RUNNING})
    session.client.cancel(job_id)

    def logged() -> bool:
        lines = [
            line for path in session.cluster.directory.rglob("*.log") for line in path.read_text(errors="replace").splitlines()
        ]
        return any(
            all(f"{key}=" in line for key in ("job_id", "vertex", "subtask", "attempt")) and job_id in line for line in lines
        )

    eventually(logged, "a log line with job, vertex, subtask and attempt")
