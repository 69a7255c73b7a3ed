"""Where the time goes, the counters, and the names they are exposed under."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.common.metric_reference import GROUPS, documents
from firesteel.common.states import ExecutionState
from firesteel.common.task_metrics import PartitionProgress, TaskMetrics, TopicProgress
from firesteel.elements import MAX_TIMESTAMP_US, EndOfData, EndOfPartition, Watermark
from firesteel.testing import Journal, RecordingOperator
from taskexecutor.executor.task.meters import TaskMeters
from taskexecutor.executor.task.metrics import TaskMetricGroup
from taskexecutor.executor.timing.clock import TaskClock, TimeKind
from tests.unit.task.runs import Run, batch, in_edge, operator, out_edge, vertex


def documented_metrics(prefix: str) -> set[str]:
    (group,) = (group for group in GROUPS if group.prefix == prefix)
    return {prefix + name for name in group.metrics}


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def test_time_is_counted_once_whatever_is_nested() -> None:
    now = Clock()
    clock = TaskClock(now)
    spans = clock.spans
    now.now_ns = 10
    with spans[TimeKind.PYTHON]:
        now.now_ns = 30
        with spans[TimeKind.SPARK]:
            now.now_ns = 60
            with spans[TimeKind.EXCHANGE], spans[TimeKind.EXCHANGE]:
                now.now_ns = 100
        now.now_ns = 150
    now.now_ns = 210
    spent_ns = dict(zip(TimeKind, clock.read_ns(), strict=True))
    assert spent_ns[TimeKind.RUNTIME] == 10 + 60
    assert spent_ns[TimeKind.PYTHON] == 20 + 50
    assert spent_ns[TimeKind.SPARK] == 30
    assert spent_ns[TimeKind.EXCHANGE] == 40
    assert sum(spent_ns.values()) == 210


def test_an_exception_leaves_the_span() -> None:
    now = Clock()
    clock = TaskClock(now)
    try:
        with clock.spans[TimeKind.SPARK]:
            now.now_ns = 5
            raise ValueError
    except ValueError:
        now.now_ns = 8
    assert clock.read_ns()[TimeKind.SPARK] == 5
    assert clock.read_ns()[TimeKind.RUNTIME] == 3


def test_back_pressure_is_taken_out_of_exchange_time() -> None:
    now = Clock()
    clock = TaskClock(now)
    run = Run(vertex(operator("x", ())), {})
    group = TaskMetricGroup(run.config.info, clock)
    partition = run.producer(in_edge("p"))
    group.partitions = [partition]
    with clock.spans[TimeKind.EXCHANGE]:
        now.now_ns = 10_000_000
    with clock.spans[TimeKind.IDLE]:
        now.now_ns = 14_000_000
    with clock.spans[TimeKind.BLOCKED]:
        now.now_ns = 15_000_000
    partition.blocked_ns = 3_000_000
    metrics = group.read()
    assert (metrics.exchange_ms, metrics.back_pressured_ms, metrics.idle_ms, metrics.busy_ms) == (
        7.0,
        4.0,
        4.0,
        7.0,
    )


def test_rates_are_per_second_over_a_moving_window() -> None:
    now_s = [0.0]
    run = Run(vertex(operator("x", ())), {})
    group = TaskMetricGroup(run.config.info, TaskClock(Clock()))
    meters = TaskMeters(group, lambda: now_s[0])

    def rate() -> float:
        return {sample.name: sample.value for sample in meters.samples()}[
            "flink_taskmanager_job_task_numRecordsInPerSecond"
        ]

    assert rate() == 0
    group.records_in, now_s[0] = 100, 2.0
    assert rate() == 50
    for second in range(3, 20):
        now_s[0] = float(second)
        rate()
    assert rate() == 0


@given(
    st.lists(
        st.tuples(st.sampled_from(TimeKind), st.integers(0, 10**9), st.integers(0, 10**9)),
        min_size=1,
        max_size=20,
    )
)
def test_a_tasks_times_add_up_to_the_time_that_passed(
    spans: list[tuple[TimeKind, int, int]],
) -> None:
    now = Clock()
    clock = TaskClock(now)
    run = Run(vertex(operator("x", ())), {})
    group = TaskMetricGroup(run.config.info, clock)
    meters = TaskMeters(group, lambda: now.now_ns / 1e9)
    meters.samples()
    for kind, before_ns, inside_ns in spans:
        now.now_ns += before_ns
        with clock.spans[kind]:
            now.now_ns += inside_ns
    seconds = now.now_ns / 1e9
    sampled = {
        sample.name.removeprefix("flink_taskmanager_job_task_"): sample.value
        for sample in meters.samples()
    }
    kinds = ("Busy", "Idle", "BackPressured")
    assert sum(sampled[f"accumulate{kind}TimeMs"] for kind in kinds) == pytest.approx(
        seconds * 1000
    )
    if seconds:
        rates = [sampled[f"{kind[0].lower()}{kind[1:]}TimeMsPerSecond"] for kind in kinds]
        assert sum(rates) == pytest.approx(1000)
        kinds_on_spark = ("Planning", "Running", "Converting", "Reading")
        parts = [sampled[f"accumulateSpark{part}TimeMs"] for part in kinds_on_spark]
        assert sum(parts) == pytest.approx(sampled["accumulateSparkTimeMs"])
        for kind in (
            "spark",
            "sparkPlanning",
            "sparkConverting",
            "sparkReading",
            "python",
            "exchange",
        ):
            accumulated = sampled[f"accumulate{kind[0].upper()}{kind[1:]}TimeMs"]
            assert sampled[f"{kind}TimeMsPerSecond"] == pytest.approx(accumulated / seconds)
            assert accumulated <= sampled["accumulateBusyTimeMs"] + 1e-6


def test_a_task_counts_records_and_exposes_them_under_their_names() -> None:
    journal = Journal()

    def late(op: RecordingOperator, data: pa.RecordBatch, index: int) -> None:
        op.context.counter("numLateRecordsDropped").inc(2)
        with op.context.time("python"):
            pass

    edge, out = in_edge("in"), out_edge("out", 0)
    run = Run(
        vertex(operator("map", ())),
        {"map": RecordingOperator("map", journal, on_batch=late)},
        in_edges=[(edge, 1)],
        out_edges=[out],
    )
    producer = run.producer(edge)
    producer.emit(batch(1, 2, 3))
    for event in (Watermark(5_000_000), EndOfData(True), EndOfPartition()):
        producer.emit_event(event)
    seen: dict[str, float] = {}
    labels: dict[str, dict[str, str]] = {}

    def look() -> None:
        for sample in run.task.samples():
            seen[sample.name] = sample.value
            labels[sample.name] = dict(sample.labels)

    journal.hooks["map.process_watermark(5000000)"] = look
    run.run()
    assert run.states[-1] is ExecutionState.FINISHED
    task, op = "flink_taskmanager_job_task_", "flink_taskmanager_job_task_operator_"
    assert seen[task + "numRecordsIn"] == seen[task + "numRecordsOut"] == 3
    assert seen[op + "numRecordsIn"] == seen[op + "numRecordsOut"] == 3
    assert seen[op + "numLateRecordsDropped"] == 2
    assert seen[task + "numBytesIn"] == 24
    assert seen[task + "currentInputWatermark"] == 5000
    assert labels[task + "numRecordsIn"] == {
        "job_id": run.config.job_id, "job_name": "a job", "task_id": run.config.vertex.vertex_id,
        "task_name": "map", "task_attempt_id": run.config.attempt_id, "task_attempt_num": "0",
        "subtask_index": "0",
    }  # fmt: skip
    assert labels[op + "numRecordsIn"]["operator_name"] == "map"
    for name in (
        "numRecordsInPerSecond", "numRecordsOutPerSecond", "numBytesInPerSecond",
        "numBytesOutPerSecond", "busyTimeMsPerSecond", "idleTimeMsPerSecond",
        "backPressuredTimeMsPerSecond", "isBackPressured",
        "Shuffle_Netty_Input_Buffers_inPoolUsage",
        "Shuffle_Netty_Output_Buffers_outPoolUsage",
    ):  # fmt: skip
        assert task + name in seen
    of_tasks, of_operators = (documented_metrics(prefix) for prefix in (task, op))
    assert seen.keys() <= of_tasks | of_operators
    of_checkpoints = {
        task + name
        for name in ("checkpointStartDelayNanos", "checkpointAlignmentTime", "stateSize")
    }
    assert of_tasks - seen.keys() == of_checkpoints
    final = run.final_metrics
    assert (final.records_in, final.records_out, final.late_records_dropped) == (3, 3, 2)
    assert final.attempt_id == run.config.attempt_id


def test_buffers_and_the_lag_of_a_source() -> None:
    run = Run(vertex(operator("x", ())), {})
    group = TaskMetricGroup(run.config.info, TaskClock(Clock()))
    source = group.operator("id", "Source: x")
    source.state_statistics = lambda: {"default_rocksdb_num_snapshots": 2}
    partition = run.producer(in_edge("p"))
    partition.queue_length = 3
    group.partitions = [partition, partition]
    meters = TaskMeters(group, lambda: 0.0, lambda: 9_000)

    def shown() -> dict[str, float]:
        prefix = "flink_taskmanager_job_task_"
        return {sample.name.removeprefix(prefix): sample.value for sample in meters.samples()}

    seen = shown()
    assert seen["Shuffle_Netty_Output_Buffers_outputQueueLength"] == 6
    assert seen["buffers_outputQueueLength"] == 6
    assert seen["buffers_inputQueueLength"] == 0
    assert seen["operator_default_rocksdb_num_snapshots"] == 2
    assert "watermarkLag" not in seen
    group.watermark_us = lambda: 2_000_000
    seen = shown()
    assert seen["watermarkLag"] == seen["operator_watermarkLag"] == 7_000
    group.watermark_us = lambda: MAX_TIMESTAMP_US
    assert "watermarkLag" not in shown()


def test_the_records_that_a_source_read_count_as_received() -> None:
    clock = Clock()
    run = Run(vertex(operator("x", ())), {})
    group = TaskMetricGroup(run.config.info, TaskClock(clock))
    source = group.operator("id", "Source: x")
    source.counter("numRecordsIn").inc(7)
    assert group.read().records_in == 7
    now_s = [0.0]
    meters = TaskMeters(group, lambda: now_s[0])
    meters.samples()
    source.counter("numRecordsIn").inc(10)
    now_s[0] = 2.0
    seen = [
        (sample.name.removeprefix("flink_taskmanager_job_task_"), sample.value)
        for sample in meters.samples()
    ]
    for name, value in (("numRecordsIn", 17), ("numRecordsInPerSecond", 5)):
        assert [v for n, v in seen if n == name] == [value]
        assert [v for n, v in seen if n == f"operator_{name}"] == [value]


def test_gauges_and_topics_are_exposed_under_the_names_of_flink() -> None:
    run = Run(vertex(operator("x", ())), {})
    group = TaskMetricGroup(run.config.info, TaskClock(Clock()))
    source = group.operator("id", "Source: x")
    source.gauges["buffered"] = lambda: 5.0
    source.topics = lambda: TopicProgress.of(
        [
            PartitionProgress("a", 1, 70, 60, 100, True),
            PartitionProgress("a", 0, 40, None, 41),
            PartitionProgress("b", 0, 40),
        ],
        throttle_ms=30.0,
    )
    prefix = "flink_taskmanager_job_task_operator_"
    samples = [s for s in TaskMeters(group, lambda: 0.0).samples() if s.name.startswith(prefix)]
    seen = {
        (s.name.removeprefix(prefix), *(s.labels[k] for k in ("topic", "partition") if k in s.labels)): s.value
        for s in samples
    }  # fmt: skip
    reader, partition = "KafkaSourceReader_", "KafkaSourceReader_topic_partition_"
    assert seen["buffered",] == 5
    assert seen["pendingRecords",] == 31
    assert seen[reader + "KafkaConsumer_records_lag_max",] == 30
    assert seen[reader + "KafkaConsumer_assigned_partitions",] == 3
    assert seen[reader + "KafkaConsumer_fetch_throttle_time_max",] == 30
    assert seen[reader + "pausedPartitions",] == 1
    assert {key: value for key, value in seen.items() if len(key) == 3} == {
        (partition + "currentOffset", "a", "0"): 40,
        (partition + "currentOffset", "a", "1"): 70,
        (partition + "currentOffset", "b", "0"): 40,
        (partition + "committedOffset", "a", "1"): 60,
        (partition + "recordsLag", "a", "0"): 1,
        (partition + "recordsLag", "a", "1"): 30,
    }
    assert all(documents(s.name) for s in samples if not s.name.endswith("buffered"))


def test_a_task_shows_the_partitions_with_the_largest_lags() -> None:
    def read(task: int) -> TopicProgress:
        offsets = range(task, 1_000, 2)
        return TopicProgress.of(PartitionProgress("a", n, 0, None, n) for n in offsets)

    progress = read(0)
    assert (progress.assigned_partitions, progress.largest_lag) == (500, 998)
    assert [each.partition for each in progress.partitions] == list(range(800, 1_000, 2))
    both = TaskMetrics(topics={"id": progress}) + TaskMetrics(topics={"id": read(1)})
    assert both.topics["id"].pending_records == sum(range(1_000))
    assert [each.partition for each in both.topics["id"].partitions] == list(range(900, 1_000))
