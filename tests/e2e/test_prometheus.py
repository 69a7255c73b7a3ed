"""Debian's Prometheus with our alerts on a live cluster: each panel of each board has data, and
each alert fires when its cause is made.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from firesteel import Environment, KeyedProcessFunction, Tumbling, Watermarks
from firesteel.common.states import JobStatus
from firesteel.connectors import DiscardSink, FileSource, KafkaSource, SequenceSource
from firesteel.operator import StreamOperator
from scripts.boards.grafana import boards
from tests import prometheus
from tests.credentials import folder as keys_folder
from tests.kafka.broker import Kafka
from tests.kafka.records import create_topic, produce
from tests.prometheus import Prometheus, promtool
from tests.waiting import PATIENCE_S, eventually

from .conftest import ROOT, SLOTS, Session, running, services

DEPLOY = ROOT / "deploy" / "prometheus"
# The metrics of Grafana's public board 11049, without those of Kafka. Two parts of their names
# depend on the job and on the machine: the column family, "counter" there, and the network
# interface, "bond0" there.
PUBLIC_BOARD = [
    "jobmanager_numRegisteredTaskManagers",
    "jobmanager_taskSlotsAvailable",
    "jobmanager_taskSlotsTotal",
    "jobmanager_numRunningJobs",
    "jobmanager_job_fullRestarts",
    "jobmanager_job_downtime",
    "jobmanager_job_lastCheckpointDuration",
    "jobmanager_job_lastCheckpointSize",
    "jobmanager_job_numberOfFailedCheckpoints",
    "taskmanager_job_task_operator_numRecordsOutPerSecond",
    "taskmanager_job_task_operator_numRecordsInPerSecond",
    "taskmanager_job_task_operator_numLateRecordsDropped",
    "taskmanager_job_task_currentInputWatermark",
    "taskmanager_job_task_Shuffle_Netty_Output_Buffers_outPoolUsage",
    "taskmanager_job_task_Shuffle_Netty_Input_Buffers_inPoolUsage",
    "taskmanager_job_task_Shuffle_Netty_Input_Buffers_inputQueueLength",
    "taskmanager_job_task_buffers_inputQueueLength",
    "taskmanager_job_task_buffers_outputQueueLength",
    "taskmanager_Status_JVM_GarbageCollector_G1_Old_Generation_Count",
    "taskmanager_Status_JVM_GarbageCollector_G1_Old_Generation_Time",
    "taskmanager_Status_JVM_GarbageCollector_G1_Young_Generation_Count",
    "taskmanager_Status_JVM_GarbageCollector_G1_Young_Generation_Time",
    "taskmanager_Status_JVM_Memory_NonHeap_Committed",
    "taskmanager_Status_JVM_Memory_NonHeap_Used",
    "taskmanager_Status_JVM_Memory_Heap_Max",
    "taskmanager_Status_JVM_Memory_Heap_Used",
    "taskmanager_Status_JVM_Threads_Count",
    "taskmanager_System_CPU_Usage",
    "taskmanager_System_Network_lo_ReceiveRate",
    "taskmanager_System_Network_lo_SendRate",
    "jobmanager_Status_JVM_Memory_NonHeap_Committed",
    "jobmanager_Status_JVM_Memory_NonHeap_Used",
    "jobmanager_Status_JVM_Memory_Heap_Max",
    "jobmanager_Status_JVM_Memory_Heap_Used",
    "jobmanager_Status_JVM_Threads_Count",
    "jobmanager_System_CPU_Usage",
    "jobmanager_System_Network_lo_ReceiveRate",
    "jobmanager_System_Network_lo_SendRate",
    "taskmanager_job_task_operator_default_rocksdb_actual_delayed_write_rate",
    "taskmanager_job_task_operator_default_rocksdb_num_deletes_imm_mem_tables",
    "taskmanager_job_task_operator_default_rocksdb_num_entries_imm_mem_tables",
    "taskmanager_job_task_operator_default_rocksdb_background_errors",
    "taskmanager_job_task_operator_default_rocksdb_num_snapshots",
]
# The alerts whose cause a test cannot make in a short time; promtool tests them with series.
NOT_MADE = {"FiresteelDiskFilling", "FiresteelMemoryNearLimit"}
RESTARTS = "flink_jobmanager_job_numRestarts"
SCHEMA = "at TIMESTAMP, k STRING, v INT"

pytestmark = pytest.mark.usefixtures("shipped_module")


def alert_rules() -> dict[str, Any]:
    rules: dict[str, Any] = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    return rules


def alert_names() -> set[str]:
    return {rule["alert"] for group in alert_rules()["groups"] for rule in group["rules"]}


# ---- the jobs


class Count(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state("count", "n BIGINT")

    def process_element(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        (count,) = self.count.value() or (0,)
        self.count.update((count + 1,))
        yield (ctx.get_current_key(), count)


class Unpicklable:
    def __deepcopy__(self, memo: Any) -> Unpicklable:
        return self

    def __reduce__(self) -> Any:
        raise ValueError("made to fail")


class Undurable(StreamOperator):
    """Has state that cannot be written, so each checkpoint fails."""

    def initialize_state(self, state: Any) -> None:
        state.list_state("items").append(Unpicklable())

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        pass


def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(0.3)
        yield batch


def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        raise ValueError("made to fail")
    yield from ()


def steady(folder: Path, kafka: Kafka) -> Environment:
    """Reads files more slowly than they arrive, rows whose event time stands still, and a topic."""
    env = Environment(parallelism=1)
    topic = create_topic(kafka)
    produce(kafka, topic, [b"a", b"b"])
    env.from_source(KafkaSource(topic, bootstrap_servers=kafka.bootstrap, group_id=topic)).sink_to(
        DiscardSink()
    )
    names = env.static(
        lambda spark: spark.createDataFrame([("a", "A")], "k STRING, name STRING"), name="names"
    )
    files = env.from_source(
        FileSource(str(folder), format="csv", schema=SCHEMA, malformed="drop", watch="0.2 s"),
        watermarks=Watermarks.bounded("at").with_alignment("group", max_drift="1 hour"),
    )
    named = files.transform(lambda df: df.join(names.dataframe(), "k", "left"))
    named.map_in_arrow(slow, name="Slow").sink_to(DiscardSink())
    rows = env.from_source(SequenceSource(0, rate_per_s=1_000)).transform(
        lambda df: df.selectExpr("string(value % 5) AS k", "timestamp_seconds(1000000000) AS at")
    )
    timed = rows.assign_timestamps_and_watermarks(Watermarks.bounded("at"))
    timed.key_by("k").process(Count(), "k STRING, n BIGINT", uid="count").sink_to(DiscardSink())
    windows = timed.key_by("k").window(Tumbling("1 s"))
    windows.aggregate("count(*) AS n", uid="windows").sink_to(DiscardSink())
    return env


def pressed() -> Environment:
    env = Environment(parallelism=1)
    numbers = env.from_sequence(0, 10**12).rebalance()
    numbers.map_in_arrow(slow, name="Slow").sink_to(DiscardSink())
    return env


def failing() -> Environment:
    env = Environment(parallelism=1)
    env.from_sequence(0, 10**12).map_in_arrow(fail, name="Fail").sink_to(DiscardSink())
    return env


def undurable() -> Environment:
    env = Environment(parallelism=1)
    numbers = env.from_source(SequenceSource(0, rate_per_s=10))
    numbers.operator("Undurable", Undurable, uid="undurable").sink_to(DiscardSink())
    return env


@contextmanager
def arriving(folder: Path) -> Iterator[None]:
    """Files arrive in the folder, each with a malformed row."""
    over = threading.Event()

    def write(number: int) -> None:
        part = folder / f".{number}"
        part.write_text("2020-01-01 00:00:00,a,1\n2020-01-01 00:00:01,b,x\n")
        part.replace(folder / f"{number:06}.csv")

    def write_all() -> None:
        number = 50
        while not over.wait(0.1):
            write(number)
            number += 1

    folder.mkdir()
    for number in range(50):
        write(number)
    writing = threading.Thread(target=write_all)
    writing.start()
    try:
        yield
    finally:
        over.set()
        writing.join()


# ---- Prometheus


@contextmanager
def watching(session: Session, directory: Path) -> Iterator[Prometheus]:
    """Runs Prometheus with the files for a cluster on this machine, except that it is quicker."""
    (directory / "security").symlink_to(keys_folder().path)
    (directory / "cluster").symlink_to(session.cluster.directory)
    configuration = yaml.safe_load((DEPLOY / "local.yml").read_text())
    configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (directory / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    rules = alert_rules()
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["for"] = "0s"
            rule["expr"] = rule["expr"].replace("[5m]", "[10s]")
    (directory / "alerts.yml").write_text(yaml.safe_dump(rules))
    with prometheus.running(directory / "prometheus.yml", directory) as server:
        yield server


def without_data(server: Prometheus) -> list[str]:
    """Returns the panels' queries without data, with all values of the variables."""
    empty = []
    for name, content in boards().items():
        board = json.loads(content)
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                query = re.sub(r"\$(cluster|job|task|executor)\b", ".*", target["expr"])
                if not server.query(query.replace("$__rate_interval", "10s")):
                    empty.append(f"{name}: {panel['title']}: {target['expr']}")
        for variable in board["templating"]["list"]:
            match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
            assert match is not None
            query = re.sub(r"\$\w+", ".*", match[1])
            if not any(match[2] in series["metric"] for series in server.query(query)):
                empty.append(f"{name}: variable {variable['name']}")
    return empty


def fired(server: Prometheus, alert: str, **labels: str) -> bool:
    """Returns whether the alert fires or has fired."""
    selector = ",".join(
        f'{name}="{value}"' for name, value in {"alertname": alert, **labels}.items()
    )
    return bool(server.query(f'last_over_time(ALERTS{{alertstate="firing",{selector}}}[10m])'))


def test_each_panel_has_data_and_each_alert_fires(
    session: Session, kafka: Kafka, tmp_path: Path
) -> None:
    checkpoints = {
        "execution__checkpointing__interval": "500 ms",
        "execution__checkpointing__dir": str(tmp_path / "checkpoints"),
    }
    files = tmp_path / "files"
    made: dict[str, dict[str, str]] = {
        "FiresteelJobFailed": {"job_name": "failing"},
        "FiresteelJobRestarting": {"job_name": "restarting"},
        "FiresteelCheckpointsFailing": {"job_name": "undurable"},
        "FiresteelCheckpointOverdue": {"job_name": "undurable"},
        "FiresteelSourceLagGrowing": {"job_name": "steady"},
        "FiresteelEventTimeLagGrowing": {"job_name": "steady"},
        "FiresteelWatermarkStuck": {"job_name": "steady"},
        "FiresteelSlotsMissing": {},
        "FiresteelNoLeader": {"office": "dispatcher"},
        "FiresteelTaskExecutorGone": {"process": "taskexecutor"},
    }
    assert made.keys() == alert_names() - NOT_MADE
    with arriving(files), watching(session, tmp_path) as server:
        failed = session.submit(failing(), "failing")
        steady_id = session.submit(
            steady(files, kafka), "steady", **checkpoints, state__backend__type="rocksdb"
        )
        session.submit(pressed(), "pressed")
        session.submit(
            undurable(),
            "undurable",
            **checkpoints,
            **{"execution.checkpointing.tolerable-failed-checkpoints": "100000"},
        )
        session.wait_until(steady_id, running)
        *_, ended = session.client.watch_job(failed)
        assert ended.status is JobStatus.FAILED
        session.submit(
            failing(),
            "restarting",
            **{
                "restart-strategy.type": "fixed-delay",
                "restart-strategy.fixed-delay.attempts": "100000",
                "restart-strategy.fixed-delay.delay": "300 ms",
            },
        )
        session.submit(pressed_by(SLOTS + 1), "waiting", slot__request__timeout="10 min")
        eventually(lambda: not without_data(server), lambda: f"data in {without_data(server)}")
        names = {s["metric"]["__name__"] for s in server.query('{__name__=~"flink_.*"}')}
        assert [name for name in PUBLIC_BOARD if f"flink_{name}" not in names] == []

        def await_alerts(*alerts: str) -> None:
            for alert in alerts:
                eventually(
                    partial(fired, server, alert, **made[alert]),
                    lambda alert=alert: f"{alert} fires; restarts: {server.query(RESTARTS)}",
                    patience_s=5 * PATIENCE_S,  # until a job has restarted three times
                )

        (dispatcher,) = services(session, "dispatcher")
        dispatcher.send_signal(signal.SIGSTOP)
        try:
            await_alerts("FiresteelNoLeader")
        finally:
            dispatcher.send_signal(signal.SIGCONT)
        await_alerts(*(alert for alert in made if alert != "FiresteelTaskExecutorGone"))
        services(session, "taskexecutor")[0].kill()
        await_alerts("FiresteelTaskExecutorGone")


def pressed_by(parallelism: int) -> Environment:
    env = Environment(parallelism=parallelism)
    env.from_sequence(0, 10**12).sink_to(DiscardSink())
    return env


# ---- promtool


def test_the_files_pass_promtool(tmp_path: Path) -> None:
    assert "12 rules found" in promtool("check", "rules", DEPLOY / "alerts.yml", cwd=tmp_path)
    for path in DEPLOY.glob("*.yml"):
        shutil.copy(path, tmp_path)
    for name in ("local.yml", "prometheus.yml"):
        promtool("check", "config", "--syntax-only", tmp_path / name, cwd=tmp_path)


def test_alerts_whose_cause_is_slow(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "alerts.yml", tmp_path)
    leads = 'flink_jobmanager_isLeader{cluster="c", office="dispatcher", instance="'
    threads = 'flink_jobmanager_Status_JVM_Threads_Count{cluster="c", instance="'
    disk = '{cluster="c", host="h", directory="/data", instance="h:9249"}'
    slot = '{cluster="c", tm_id="t", slot="0"}'

    def test(alert: str, at: str, values: str, *, fires: bool) -> dict[str, Any]:
        series = {
            f"flink_taskmanager_Status_Disk_Free{disk}": values,
            f"flink_taskmanager_Status_Disk_Total{disk}": "1000x120",
            f"flink_taskmanager_Status_Slot_Memory_Total{slot}": values,
            f"flink_taskmanager_Status_Slot_Memory_Limit{slot}": "1000x120",
            f'{leads}leader"}}': values.replace("500", "1").replace("90", "0"),
            f'{leads}standby"}}': "0x120",
            f'{threads}standby"}}': "9x120",
        }
        firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'
        expected = {"labels": "{}", "value": int(fires)}
        return {
            "interval": "1m",
            "input_series": [{"series": s, "values": v} for s, v in series.items()],
            "promql_expr_test": [{"expr": firing, "eval_time": at, "exp_samples": [expected]}],
        }

    tests = [
        test("FiresteelDiskFilling", "1h", "500x120", fires=False),
        test("FiresteelDiskFilling", "4m", "90x120", fires=False),
        test("FiresteelDiskFilling", "6m", "90x120", fires=True),
        test("FiresteelDiskFilling", "1h30m", "900-4x120", fires=True),
        test("FiresteelNoLeader", "6m", "500x120", fires=False),
        test("FiresteelNoLeader", "6m", "90x120", fires=True),
        test("FiresteelNoLeader", "11m", "500x3 _x20", fires=True),
        test("FiresteelMemoryNearLimit", "1h", "500x120", fires=False),
        test("FiresteelMemoryNearLimit", "4m", "950x120", fires=False),
        test("FiresteelMemoryNearLimit", "6m", "950x120", fires=True),
    ]
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": ["alerts.yml"], "tests": tests}))
    promtool("test", "rules", file, cwd=tmp_path)
