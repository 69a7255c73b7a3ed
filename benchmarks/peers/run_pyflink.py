"""`python run_pyflink.py WORK [threads]`: a Python map, then a KeyedProcessFunction; for
keyed_process, with a timer per row.

Runs in `.bench-venv`, which has only PyFlink. Python functions run in separate processes, or in
threads of the JVM.
"""

from __future__ import annotations

import os
import sys
import sysconfig

from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import DataStream, StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.functions import KeyedProcessFunction, RuntimeContext
from pyflink.datastream.state import ValueStateDescriptor

from benchmarks.peers import work as peers
from benchmarks.peers.work import Work

SLOTS = 2
ROWS_IN_PROCESSES = 200_000  # of the timed run; more would take minutes
SETTINGS = {
    "parallelism.default": str(SLOTS),
    "taskmanager.numberOfTaskSlots": str(SLOTS),
    "pipeline.object-reuse": "true",
    "python.executable": sys.executable,
    "python.fn-execution.bundle.size": "10000",  # ten times the default
}


class CountAndSum(KeyedProcessFunction):  # type: ignore[misc]  # PyFlink is untyped
    def open(self, runtime_context: RuntimeContext) -> None:
        kind = Types.TUPLE([Types.LONG(), Types.LONG()])
        self._state = runtime_context.get_state(ValueStateDescriptor("state", kind))

    def process_element(self, value, ctx):  # type: ignore[no-untyped-def]
        count, total = self._state.value() or (0, 0)
        count, total = count + 1, total + value[1]
        self._state.update((count, total))
        yield value[0], count, total


class CountAndSumLater(KeyedProcessFunction):  # type: ignore[misc]
    def open(self, runtime_context: RuntimeContext) -> None:
        kind = Types.TUPLE([Types.LONG(), Types.LONG()])
        self._state = runtime_context.get_state(ValueStateDescriptor("state", kind))

    def process_element(self, value, ctx):  # type: ignore[no-untyped-def]
        count, total = self._state.value() or (0, 0)
        self._state.update((count + 1, total + value[1]))
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + peers.TIMER_MS)

    def on_timer(self, timestamp, ctx):  # type: ignore[no-untyped-def]
        count, total = self._state.value()
        yield ctx.get_current_key(), count, total


class Milliseconds(TimestampAssigner):  # type: ignore[misc]
    def extract_timestamp(self, value, record_timestamp):  # type: ignore[no-untyped-def]
        return value[1]


def program(environment: StreamExecutionEnvironment, work: Work, rows: int) -> DataStream:
    source = NumberSequenceSource(0, rows - 1)
    numbers = environment.from_source(
        source, WatermarkStrategy.no_watermarks(), "numbers", type_info=Types.LONG()
    )
    keys = work.keys
    keyed = numbers.map(
        lambda n: (n % keys, n), output_type=Types.TUPLE([Types.LONG(), Types.LONG()])
    )
    function = CountAndSum()
    if work.name == "keyed_process":
        keyed = keyed.assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Milliseconds())
        )
        function = CountAndSumLater()
    three = Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG()])
    return keyed.key_by(lambda pair: pair[0], key_type=Types.LONG()).process(
        function, output_type=three
    )


def main() -> None:
    work, mode = peers.WORKS[sys.argv[1]], "thread" if "threads" in sys.argv[2:] else "process"
    # An interpreter in the JVM does not find the virtual environment by itself.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [os.environ["PYTHONPATH"], sysconfig.get_path("purelib")]
    )
    configuration = Configuration()
    for key, value in {**SETTINGS, "python.execution-mode": mode}.items():
        configuration.set_string(key, value)
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    with program(environment, work, work.check_rows).execute_and_collect() as rows:
        columns = dict(zip("kcs", zip(*rows, strict=True), strict=True))
    peers.check(work, columns, work.check_rows)
    timed_rows = work.rows if mode == "thread" else ROWS_IN_PROCESSES
    program(environment, work, timed_rows).filter(lambda row: False).print()
    peers.begin()
    environment.execute()
    peers.end(timed_rows)


if __name__ == "__main__":
    main()
