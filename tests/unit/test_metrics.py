from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from firesteel.common import metrics, metrics_targets
from firesteel.common.config import Configuration, ConfigurationError
from firesteel.common.metrics import Registry, parse_ports
from firesteel.common.process_metrics import add_disk_metrics, add_process_metrics
from firesteel.common.rpc.process_info import status_metrics
from firesteel.errors import FiresteelError
from tests.waiting import PATIENCE_S

HOST = "127.0.0.1"
TASK = {"host": "h", "tm_id": "t", "job_id": "j", "task_attempt_id": "a1"}


@pytest.fixture
def registry() -> Iterator[Registry]:
    registry = Registry()
    yield registry
    registry.close()


def exposed(registry: Registry) -> dict[str, tuple[str, dict[tuple[str, ...], float]]]:
    """name -> (type, {label values: value}), as Prometheus itself would read it."""
    families = text_string_to_metric_families(registry.render().decode())
    return {
        f.name: (f.type, {(s.name, *s.labels.values()): s.value for s in f.samples})
        for f in families
    }


def scrape(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def test_a_count_is_a_gauge_under_its_exact_name(registry: Registry) -> None:
    registry.gauge("flink_taskmanager_job_task_numRecordsIn", {"host": "h"}).inc()
    registry.gauge("flink_taskmanager_job_task_numRecordsIn", {"host": "h"}).inc(41)
    registry.gauge("flink_jobmanager_numRunningJobs").set(3)
    assert exposed(registry) == {
        "flink_jobmanager_numRunningJobs": ("gauge", {("flink_jobmanager_numRunningJobs",): 3}),
        "flink_taskmanager_job_task_numRecordsIn": (
            "gauge",
            {("flink_taskmanager_job_task_numRecordsIn", "h"): 42},
        ),
    }


def test_a_summary_has_flinks_quantiles(registry: Registry) -> None:
    summary = registry.summary("latency", {"host": "h"})
    for value in range(1, 1001):
        summary.observe(value)
    kind, samples = exposed(registry)["latency"]
    assert kind == "summary"
    expected = {"0.5": 500, "0.75": 750, "0.95": 950, "0.98": 980, "0.99": 990, "0.999": 999}
    assert {key[-1]: value for key, value in samples.items() if key[0] == "latency"} == expected
    assert samples["latency_count", "h"] == 1000
    assert samples["latency_sum", "h"] == 500_500


def test_quantiles_are_of_the_last_observations_only(registry: Registry) -> None:
    summary = registry.summary("latency")
    for value in [10**6] * 5 + [1] * metrics.SUMMARY_WINDOW:
        summary.observe(value)
    shown = summary.snapshot()
    assert set(shown.quantiles.values()) == {1}
    assert (shown.count, shown.sum) == (
        metrics.SUMMARY_WINDOW + 5,
        5 * 10**6 + metrics.SUMMARY_WINDOW,
    )


def test_sources_are_asked_at_every_scrape(registry: Registry) -> None:
    values = iter([1.0, 2.0])
    registry.add_source(lambda: [metrics.Sample("flink_x", {"slot": "0"}, next(values))])
    assert [exposed(registry)["flink_x"][1]["flink_x", "0"] for _ in range(2)] == [1, 2]


def test_a_source_that_fails_hides_no_other(registry: Registry) -> None:
    def broken() -> list[metrics.Sample]:
        raise RuntimeError("the slot is gone")

    registry.add_source(broken)
    registry.add_source(lambda: [("flink_y", {}, "not a number")])  # type: ignore[list-item]
    registry.add_source(lambda: [metrics.Sample("flink_x", {}, 1)])
    assert set(exposed(registry)) == {"flink_x"}
    registry.remove_source(broken)
    assert set(exposed(registry)) == {"flink_x"}


def test_what_belongs_to_an_ended_job_is_forgotten(registry: Registry) -> None:
    for job in ("j1", "j2"):
        registry.gauge("uptime", {"job_id": job, "host": "h"}).set(1)
        registry.summary("latency", {"job_id": job}).observe(1)
    registry.remove({"job_id": "j1"})
    assert exposed(registry)["uptime"][1] == {("uptime", "h", "j2"): 1}
    assert {key[1] for key in exposed(registry)["latency"][1]} == {"j2"}


def test_the_allow_list_takes_globs() -> None:
    registry = Registry(allow=["flink_jobmanager_*", "flink_taskmanager_job_task_numRecords*"])
    for name in (
        "jobmanager_numRunningJobs",
        "taskmanager_job_task_numRecordsIn",
        "taskmanager_job_task_isBackPressured",
    ):
        registry.gauge(f"flink_{name}").set(1)
    registry.summary("flink_taskmanager_latency").observe(1)
    assert set(exposed(registry)) == {
        "flink_jobmanager_numRunningJobs",
        "flink_taskmanager_job_task_numRecordsIn",
    }


def test_series_that_differ_in_a_dropped_label_only_are_merged() -> None:
    registry = Registry(drop_labels=["task_attempt_id", "tm_id"])
    for attempt, value in (("a1", 5.0), ("a2", 3.0)):
        registry.gauge(
            "flink_taskmanager_job_task_numRecordsIn", {**TASK, "task_attempt_id": attempt}
        ).set(value)
        registry.gauge(
            "flink_taskmanager_job_task_currentInputWatermark", {**TASK, "task_attempt_id": attempt}
        ).set(value)
        registry.summary("latency", {"task_attempt_id": attempt}).observe(value)
    shown = exposed(registry)
    assert list(shown["flink_taskmanager_job_task_numRecordsIn"][1].values()) == [8]
    assert list(shown["flink_taskmanager_job_task_currentInputWatermark"][1].values()) == [5]
    assert shown["latency"][1]["latency_count",] == 1


def test_both_lists_come_from_the_configuration() -> None:
    registry = Registry.from_configuration(
        Configuration(
            {
                "metrics.reporter.prom.filter.includes": "a*",
                "metrics.reporter.prom.scope.variables.excludes": "host",
            }
        )
    )
    registry.gauge("a", {"host": "h", "tm_id": "t"}).set(1)
    registry.gauge("b", {"host": "h"}).set(1)
    assert exposed(registry) == {"a": ("gauge", {("a", "default", "t"): 1})}


def test_every_series_names_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = Configuration({"high-availability.cluster-id": "orders"})
    for environment, cluster in ((None, "orders"), ("c0ffee", "c0ffee")):
        monkeypatch.delenv(metrics_targets.CLUSTER_ID, raising=False)
        if environment:
            monkeypatch.setenv(metrics_targets.CLUSTER_ID, environment)
        registry = Registry.from_configuration(conf)
        registry.gauge("flink_a", {"host": "h"}).set(1)
        registry.summary("flink_b").observe(1)
        series = [line for line in registry.render().decode().splitlines() if line[0] != "#"]
        assert len(series) > 3
        assert all(f'cluster="{cluster}"' in line for line in series), series


def test_a_process_gets_the_port_of_a_dead_one_of_its_kind(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = metrics_targets.add(tmp_path, "taskexecutor", f"127.0.0.1:{port}")
    assert metrics_targets.ports_of_dead(tmp_path, "taskexecutor") == [], "it lives"
    file.write_text(file.read_text().replace(str(os.getpid()), str(ended.pid)))
    assert metrics_targets.ports_of_dead(tmp_path, "dispatcher") == []
    assert metrics_targets.ports_of_dead(tmp_path, "taskexecutor") == [port]
    registry = Registry()
    assert registry.serve("127.0.0.1", "0", first=[port]) == port
    registry.close()
    assert metrics_targets.add(tmp_path, "taskexecutor", f"127.0.0.1:{port}") == file
    (entry,) = json.loads(file.read_text())
    assert entry["targets"] == [f"127.0.0.1:{port}"]
    (target,) = metrics_targets.targets(tmp_path)
    assert target.lives and target.process == "taskexecutor"
    elsewhere = file.read_text().replace(socket.gethostname(), "another-container")
    other = tmp_path / file.name.replace(socket.gethostname(), "another-container")
    other.write_text(elsewhere.replace(str(os.getpid()), str(ended.pid)))
    assert other != file
    assert metrics_targets.ports_of_dead(tmp_path, "taskexecutor") == [], "its ids are not ours"
    assert len(metrics_targets.targets(tmp_path)) == 2
    metrics_targets.add(tmp_path, "jobmaster", f"127.0.0.1:{port}")
    kinds = {each.host: each.process for each in metrics_targets.targets(tmp_path)}
    assert kinds == {"another-container": "taskexecutor", socket.gethostname(): "jobmaster"}


def test_a_port_that_was_scraped_a_moment_ago_is_kept() -> None:
    former, successor, third = Registry(), Registry(), Registry()
    port = former.serve("127.0.0.1", "0")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert answer.status == 200
    former.close()  # the connection is in TIME_WAIT
    assert successor.serve("127.0.0.1", "0", first=[port]) == port
    assert third.serve("127.0.0.1", "0", first=[port]) != port, "it is taken"
    successor.close()
    third.close()


def test_a_port_outside_of_the_configured_range_is_not_kept() -> None:
    registry = Registry()
    assert registry.serve("127.0.0.1", "19249-19349", first=[1]) in range(19249, 19350)
    registry.close()


def test_names_and_labels_from_outside_cannot_break_the_text(registry: Registry) -> None:
    registry.add_source(lambda: [('a b"{}\n', {"job_name": 'evil"} 1\n# TYPE x counter \\'}, 1)])
    assert exposed(registry) == {
        "a_b____": ("gauge", {("a_b____", 'evil"} 1\n# TYPE x counter \\'): 1})
    }


def test_the_metrics_of_a_process_itself(registry: Registry) -> None:
    add_process_metrics(registry, scope="jobmanager", labels={"host": "h"})
    shown = {name: next(iter(samples.values())) for name, (_, samples) in exposed(registry).items()}
    of_machine = {name for name in shown if name.startswith("flink_jobmanager_System_")}
    assert {
        "flink_jobmanager_System_CPU_Usage",
        "flink_jobmanager_System_Memory_Available",
        "flink_jobmanager_System_Memory_Total",
        "flink_jobmanager_System_Network_lo_ReceiveRate",
        "flink_jobmanager_System_Network_lo_SendRate",
    } <= of_machine
    assert set(shown) - of_machine == {
        f"flink_jobmanager_Status_JVM_{name}"
        for name in (
            "CPU_Load",
            "Memory_Heap_Used",
            "Memory_Heap_Committed",
            "Memory_Heap_Max",
            "Memory_NonHeap_Used",
            "Memory_NonHeap_Committed",
            "Memory_NonHeap_Max",
            "Threads_Count",
        )
    }
    assert shown["flink_jobmanager_Status_JVM_Memory_Heap_Used"] == pytest.approx(
        psutil.Process().memory_info().rss, rel=0.1
    )
    assert shown["flink_jobmanager_Status_JVM_Threads_Count"] >= threading.active_count()


def test_the_space_on_disks(registry: Registry, tmp_path: Path) -> None:
    directories = [tmp_path, tmp_path, tmp_path / "missing"]
    add_disk_metrics(registry, directories, scope="taskmanager", labels={"tm_id": "t"})
    shown = {
        sample.name: (sample.labels, sample.value)
        for family in registry.collect()
        for sample in family.samples
    }
    assert set(shown) == {f"flink_taskmanager_Status_Disk_{n}" for n in ("Free", "Total")}
    free, total = (
        shown["flink_taskmanager_Status_Disk_Free"],
        shown["flink_taskmanager_Status_Disk_Total"],
    )
    assert free[0] == total[0] == {"tm_id": "t", "directory": str(tmp_path)}
    assert 0 < free[1] < total[1]


def test_processes_on_one_machine_take_the_next_free_port(registry: Registry) -> None:
    with socket.create_server((HOST, 0)) as taken:
        first = taken.getsockname()[1]
        port = registry.serve(HOST, f"{first}-{min(first + 50, 65535)}")
        assert first < port <= first + 50
        with pytest.raises(
            FiresteelError, match=r"no free port for metrics in .*metrics\.reporter\.prom\.port"
        ):
            Registry().serve(HOST, str(first))


def test_it_is_served_over_http(registry: Registry) -> None:
    registry.gauge("flink_jobmanager_numRunningJobs").set(1)
    port = registry.serve(HOST, "0")
    assert "flink_jobmanager_numRunningJobs 1.0" in scrape(port)
    assert scrape(port, "/") == scrape(port, "/metrics?x=y")
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
    connection.request("GET", "/../../etc/passwd")
    assert connection.getresponse().status == 404
    connection.close()


def test_closing_frees_the_port_and_ends_the_thread() -> None:
    registry = Registry()
    port = registry.serve(HOST, "0")
    registry.close()
    assert "metrics" not in {thread.name for thread in threading.enumerate() if thread.is_alive()}
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, port), timeout=PATIENCE_S)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01",
        b"GET\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\n" * 100,
        bytes(range(256)) * 800,
    ],
    ids=["TLS", "half a request", "gRPC", "empty lines", "bytes"],
)
def test_garbage_on_the_port_is_harmless(registry: Registry, garbage: bytes) -> None:
    registry.gauge("flink_x").set(1)
    port = registry.serve(HOST, "0")
    with socket.create_connection((HOST, port), timeout=PATIENCE_S) as peer:
        try:
            peer.sendall(garbage)
        except OSError:  # it has hung up on us already
            pass
    assert "flink_x 1.0" in scrape(port)


def test_connections_that_are_held_open_cost_a_bounded_number_of_threads(
    registry: Registry,
) -> None:
    port = registry.serve(HOST, "0")
    before = threading.active_count()
    held = [
        socket.create_connection((HOST, port), timeout=PATIENCE_S)
        for _ in range(3 * metrics.MAX_CONNECTIONS)
    ]
    try:
        held[-1].settimeout(PATIENCE_S)
        assert held[-1].recv(1) == b""  # turned away, not kept
        assert threading.active_count() - before <= metrics.MAX_CONNECTIONS
    finally:
        for connection in held:
            connection.close()


@pytest.mark.parametrize(
    ("text", "ports"),
    [("9249", range(9249, 9250)), (" 9249 - 9251 ", range(9249, 9252)), ("0", range(1))],
)
def test_ports(text: str, ports: range) -> None:
    assert parse_ports(text) == ports


@pytest.mark.parametrize("text", ["", "http", "9251-9249", "70000", "-1", "1-2-3", "0x10"])
def test_what_is_no_port_is_refused_by_name(text: str) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"metrics\.reporter\.prom\.port: .* is not allowed; expected a port, a range",
    ):
        parse_ports(text)


def test_rest_reports_a_collector_under_its_own_name_only(registry: Registry) -> None:
    prefix = "flink_taskmanager_Status_JVM_GarbageCollector_"
    registry.gauge(f"{prefix}G1_Young_Generation_Count", {"slot": "0"}).set(3)
    rest = {"Status.JVM.GarbageCollector.G1_Young_Generation.Count": 3}
    assert status_metrics(registry) == rest
    registry.gauge(f"{prefix}Copy_Count", {"slot": "0"}).set(3)
    registry.gauge(f"{prefix}Copy_Count", {"slot": "1"}).set(4)
    assert status_metrics(registry) == {"Status.JVM.GarbageCollector.Copy.Count": 7}
