"""Metrics, logs, health and reflection, as an operator's tools see them."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import threading
from collections.abc import Iterator

import psutil
import pyarrow as pa
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from firesteel import Environment
from firesteel.client.job_details import JobDetails
from firesteel.common.job_log.lines import LogLine
from firesteel.common.metric_reference import documents
from firesteel.common.metrics_targets import targets
from firesteel.common.security.access import ROUTES
from firesteel.common.security.roles import Role
from firesteel.common.states import ExecutionState
from firesteel.connectors import DiscardSink, KafkaSource, SequenceSource
from firesteel.errors import JobFailed
from tests.credentials import channel_as, get, scrape
from tests.kafka.broker import ADMINISTRATOR, Kafka
from tests.kafka.records import create_topic
from tests.waiting import PATIENCE_S, eventually

from .conftest import (
    SLOTS,
    WARM_S,
    Session,
    command,
    firesteel,
    logs_below,
    processes,
    running,
    services,
)
from .jobs import ArrowFunction, endless, failing, nothing_left, unhurried


def metrics_of(process: psutil.Process) -> str:
    """Returns the metrics that the process serves to Prometheus on one of its ports."""
    for connection in process.net_connections("tcp"):
        if connection.status != psutil.CONN_LISTEN:
            continue
        try:
            return scrape(f"127.0.0.1:{connection.laddr.port}")
        except OSError:
            continue
        except Exception:  # not HTTP: the gRPC port
            continue
    raise AssertionError(f"process {process.pid} serves no metrics")


def _refuse_to_connect(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    secret = "-".join(["planted", "4", "program"])
    raise ConnectionError(f"jdbc:postgresql://ada:{secret}@db/x?password={secret}")


def test_no_secret_is_left_behind(session: Session) -> None:
    env = failing(_refuse_to_connect, parallelism=1)
    with Kafka(users={}) as kafka:
        properties = kafka.settings(ADMINISTRATOR)
        planted = ("planted-5", properties["sasl.password"])
        servers = properties.pop("bootstrap.servers")
        env.from_source(
            KafkaSource(create_topic(kafka), bootstrap_servers=servers, properties=properties)
        ).sink_to(DiscardSink())
        job_id = session.submit(env, spark__hadoop__fs__s3a__secret__key="planted-5-job")
        with pytest.raises(JobFailed, match=r"ConnectionError: jdbc:postgresql://\*{6}@db/x"):
            session.client.wait(job_id)
    below = session.cluster.directory
    rest = json.loads((below / "cluster.json").read_text())["rest_address"]
    routes = [route.replace("{job}", job_id) for route in ROUTES if route.startswith("GET /")]
    left = {
        **{route: get(rest, route[4:]) for route in routes if "{" not in route},
        "show": firesteel("show", "--full", "-m", session.address, job_id).stdout,
        "logs": firesteel("logs", "-m", session.address, job_id).stdout,
        "command lines": "\n".join(map(command, processes(lambda line: str(below) in line))),
        **{files: "".join(logs_below(below, files)) for files in ("*.log", "*.json*", "jobs.db*")},
    }
    assert all(text for place, text in left.items() if not place.startswith("GET"))
    of_cluster = ("planted-1", "planted-2", "planted-3", "planted-4")
    found = [
        (secret, place)
        for place, text in left.items()
        # The job's graph, which the next JobMaster runs, has the configuration of the job.
        for secret in (of_cluster if place == "jobs.db*" else (*of_cluster, *planted))
        if secret in text
    ]
    assert found == []


def test_every_process_serves_prometheus_metrics(session: Session) -> None:
    job_id = session.submit(endless(), "measured")
    session.wait_until(job_id, running)
    (dispatcher,) = services(session, "dispatcher")
    (manager,) = services(session, "resourcemanager")
    workers = services(session, "taskexecutor")
    assert re.search(r"^flink_jobmanager_numRunningJobs\S* 1(\.0)?$", metrics_of(dispatcher), re.M)
    found = targets(session.cluster.directory / "metrics")
    assert {"dispatcher", "resourcemanager", "taskexecutor"} <= {each.process for each in found}
    for each in found:
        if each.lives:
            assert 'cluster="' in scrape(each.address), each
    served = metrics_of(manager)
    assert re.search(r"^flink_jobmanager_taskSlotsTotal\S* 4(\.0)?$", served, re.M)
    assert re.search(r"^flink_jobmanager_numRegisteredTaskManagers\S* 2(\.0)?$", served, re.M)

    def job_is_up() -> bool:
        for process in services(session, "jobmaster"):
            with contextlib.suppress(AssertionError, psutil.Error):  # of a job that has ended
                if "flink_jobmanager_job_uptime" in metrics_of(process):
                    return True
        return False

    eventually(job_is_up, "the job's metrics")

    def of_tasks() -> str:
        return "\n".join(map(metrics_of, workers))

    wanted = [
        f"flink_taskmanager_job_task_{name}{{"
        for name in (
            "numRecordsIn",
            "numRecordsOut",
            "numBytesInPerSecond",
            *(
                f"{kind}TimeMsPerSecond"
                for kind in ("busy", "idle", "backPressured", "spark", "python", "exchange")
            ),
            *(
                f"accumulate{kind}TimeMs"
                for kind in ("Busy", "Idle", "BackPressured", "Spark", "Python", "Exchange")
            ),
            "isBackPressured",
            "currentInputWatermark",
        )
    ]
    served = ""

    def missing() -> list[str]:
        """Returns the missing metrics of this job's tasks; an earlier job's may also be served."""
        nonlocal served
        served = of_tasks()
        lines = [line for line in served.splitlines() if f'job_id="{job_id}"' in line]
        return [name for name in wanted if not any(line.startswith(name) for line in lines)]

    eventually(lambda: not missing(), f"all metrics of the tasks: {wanted}")
    line = next(
        li for li in served.splitlines() if li.startswith(wanted[0]) and f'job_id="{job_id}"' in li
    )
    for label in (
        "host=",
        "tm_id=",
        'job_name="measured"',
        "task_name=",
        "subtask_index=",
        "task_attempt_num=",
    ):
        assert label in line
    assert "# TYPE flink_taskmanager_job_task_numRecordsIn gauge" in served
    eventually(
        lambda: "flink_taskmanager_Status_JVM_Memory_Heap_Used" in of_tasks(), "of the slots' JVMs"
    )
    exposed = {
        name
        for process in (dispatcher, manager, *workers)
        for name in re.findall(r"^(flink_\w+?)(?:\{| )", metrics_of(process), re.M)
    }
    assert [name for name in exposed if not documents(name)] == []
    session.client.cancel(job_id)


def test_show_reports_fused_operators_and_times_of_running_and_ended_jobs(
    session: Session,
) -> None:
    env = Environment(parallelism=2)
    (
        env.from_source(SequenceSource(0, rate_per_s=2_000))
        .transform(lambda df: df.selectExpr("value % 10 AS k"), name="Keys")
        .filter("k > 2", name="Large")
        .map_in_arrow(lambda batches: batches, name="Pass")
        .rebalance()
        .transform(lambda df: df.where("rand() < 2"), name="Drawn")
        .map_in_arrow(nothing_left, name="Discard")
        .print()
    )
    job_id = session.submit(env, "shown")

    def has_worked(details: JobDetails) -> bool:
        subtasks = [
            subtask.current.metrics for subtask in details.vertices[0].subtasks if subtask.current
        ]
        has_run = any(
            "isnotnull" in operator.plan for operator in details.vertices[0].operators
        )  # as Catalyst optimised it
        drawn = details.vertices[1].operators[0].choice
        why = drawn is not None and drawn.reason
        all_work = all(
            subtask.current is not None and subtask.current.metrics.spark_ms
            for vertex in details.vertices
            for subtask in vertex.subtasks
        )
        return (
            has_run
            and why
            and all_work
            and all(m.bundles and m.python_ms and m.exchange_ms for m in subtasks)
        )

    session.wait_until(job_id, has_worked)
    running = firesteel("show", "--full", "-m", session.address, job_id).stdout
    session.client.cancel(job_id)
    *_, ended = session.client.watch_job(job_id)
    for shown, state in (
        (running, "RUNNING"),
        (firesteel("show", "--full", "-m", session.address, job_id).stdout, "CANCELED"),
    ):
        assert re.search(
            r"one plan on Spark of 2 operators\n.*Keys.*\n.*Large.*\n.*Project \[.*\n.*Filter .*\n",
            shown,
        ), shown
        assert re.search(rf"1/2 +#0 +{state}", shown), shown
        for row in (
            r"\[1\] Keys, Large +Spark, cached plan",
            r"\[1\] Pass +Python",
            r"\[2\] Drawn +Spark, plan per bundle +plan: it differs from call to call",
        ):
            assert re.search(row, shown), shown
        columns = r"Time +Spark +Python +Exchange +Busy +Idle +Back-pressured"
        assert re.search(rf"Task +{columns} *\n +1/2 +[\d.]+ m?s +\d+% +\d+% +\d+%", shown), shown
        plans = r"Planning +Running +Converting +Bundles +Mean +Last +Plans +Cached"
        assert re.search(
            rf"On Spark +{plans} *\n +1/2(?: +\d+%){{3}}(?: +\S+){{4}} +[1-9]", shown
        ), shown
    for vertex in ended.vertices:
        for subtask in vertex.subtasks:
            attempt = subtask.attempts[-1]
            metrics, at_ms = attempt.metrics, attempt.entered_ms
            told_ms = metrics.busy_ms + metrics.idle_ms + metrics.back_pressured_ms
            assert metrics.spark_ms + metrics.python_ms + metrics.exchange_ms <= metrics.busy_ms
            assert metrics.spark_planning_ms + metrics.spark_converting_ms < metrics.spark_ms
            assert (
                at_ms[ExecutionState.CANCELED] - at_ms[ExecutionState.RUNNING] <= told_ms + 1_000
            ), "the final count was not reported"
            assert told_ms <= at_ms[ExecutionState.CANCELED] - at_ms[ExecutionState.DEPLOYING] + 1


def test_health_and_reflection(session: Session) -> None:
    for address, service in (
        (session.address, "firesteel.v1.Dispatcher"),
        (
            session.client.cluster_overview().resource_manager_address,
            "firesteel.v1.ResourceManager",
        ),
    ):
        with channel_as(Role.VIEWER, address) as channel:
            health = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S
            )
            assert health.status == health_pb2.HealthCheckResponse.SERVING
            ask = reflection_pb2.ServerReflectionRequest(list_services="")
            (answer,) = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
                iter([ask]), timeout=PATIENCE_S
            )
            assert service in {s.name for s in answer.list_services_response.service}


def test_logs_carry_job_vertex_subtask_and_attempt(session: Session) -> None:
    job_id = session.submit(endless(), "logged")
    session.wait_until(job_id, running)
    session.client.cancel(job_id)

    def logged() -> bool:
        lines = [line for log in logs_below(session.cluster.directory) for line in log.splitlines()]
        return any(
            all(f"{key}=" in line for key in ("job_id", "vertex", "subtask", "attempt"))
            and job_id in line
            for line in lines
        )

    eventually(logged, "a log line with job, vertex, subtask and attempt")


def saying(what: str) -> ArrowFunction:
    def say(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        print(f"{what} starts", flush=True)
        yield from batches

    return say


def test_the_lines_of_a_job_come_from_all_processes_and_are_its_own(session: Session) -> None:
    env = Environment(parallelism=SLOTS)  # in every slot of both TaskExecutors
    unhurried(env).map_in_arrow(saying("the first"), name="Say").sink_to(DiscardSink())
    first = session.submit(env, "followed")
    followed = queue.SimpleQueue[LogLine | None]()

    def follow() -> None:
        for line in session.client.logs(first, follow=True):
            followed.put(line)
        followed.put(None)

    reading = threading.Thread(target=follow, daemon=True)
    reading.start()
    lines: list[LogLine] = []
    while sum("the first starts" in line.text for line in lines) < SLOTS:
        line = followed.get(timeout=WARM_S)  # slots may have to restart
        assert line is not None, "it ended before the job"
        lines.append(line)
    session.client.cancel(first)
    while (line := followed.get(timeout=PATIENCE_S)) is not None:
        lines.append(line)
    assert any("CANCELED" in line.text for line in lines), "its end"
    session.wait_until_all_slots_are_free()

    env = Environment(parallelism=SLOTS)
    numbers = env.from_sequence(0, 100).map_in_arrow(saying("the second"), name="Say")
    numbers.sink_to(DiscardSink())
    second = session.submit(env, "in the same slots")
    session.client.wait(second)
    session.wait_until_all_slots_are_free()
    logs = {job_id: list(session.client.logs(job_id)) for job_id in (first, second)}
    for job_id, own, other in ((first, "first", "second"), (second, "second", "first")):
        assert [line for line in logs[job_id] if line.is_notice] == []
        printed = {line.text.partition("> ")[2] for line in logs[job_id]}  # after the subtask
        assert f"the {own} starts" in printed
        assert f"the {other} starts" not in printed
        kinds = {line.process.partition("[")[0] for line in logs[job_id]}
        assert kinds >= {"dispatcher", "resourcemanager", "jobmaster", "slot-0", "slot-1"}
        times = [line.time_us for line in logs[job_id]]
        assert times == sorted(times)
        slots = {(line.task_executor_id, line.process) for line in logs[job_id]}
        assert len({of for of, process in slots if process.startswith("slot-")}) == 2
    end_us = session.client.job_details(first).end_ms * 1000
    of_tasks = {
        line.text for line in logs[first] if " subtask=" in line.text and line.time_us <= end_us
    }
    assert {line.text for line in lines} >= of_tasks, "all until its end"

    shown = firesteel("logs", "-m", session.address, "--vertex", "Say", "--subtask", "2", first)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("\n") > 1
    for text in shown.stdout.splitlines():
        assert re.match(
            r"2\d{3}-\d\d-\d\dT[\d:.]+Z slot-\d\[\d+\]@[0-9a-f]{8} "
            r"(level=.* subtask=1 |2> the first starts$)",
            text,
        ), text
    refused = firesteel("logs", "-m", session.address, "--vertex", "Sya", first)
    assert refused.returncode == 1
    assert "has no vertex 'Sya'; it has 'Source" in refused.stderr, refused.stderr
