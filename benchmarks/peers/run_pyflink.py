"""`python run_pyflink.py stateful_processor`: a Python map, then a KeyedProcessFunction, in PyFlink's process mode.

In `.bench-venv`, which has PyFlink alone.
"""

from __future__ import annotations

import sys

from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.datastream import DataStream, StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.functions import KeyedProcessFunction, RuntimeContext
from pyflink.datastream.state import ValueStateDescriptor

from benchmarks.peers import work as peers
from benchmarks.peers.work import Work

SLOTS = 2
ROWS = 100_000  # it takes minutes for more


class CountAndSum(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        kind = Types.TUPLE([Types.LONG(), Types.LONG()])
        self._state = runtime_context.get_state(ValueStateDescriptor("state", kind))

    def process_element(self, value, ctx):  # type: ignore[no-untyped-def]
        count, total = self._state.value() or (0, 0)
        count, total = count + 1, total + value[1]
        self._state.update((count, total))
        yield value[0], count, total


def program(environment: StreamExecutionEnvironment, work: Work, rows: int) -> DataStream:
    source = NumberSequenceSource(0, rows - 1)
    numbers = environment.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", type_info=Types.LONG())
    keys = work.keys
    keyed = numbers.map(lambda n: (n % keys, n), output_type=Types.TUPLE([Types.LONG(), Types.LONG()]))
    three = Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG()])
    return keyed.key_by(lambda pair: pair[0], key_type=Types.LONG()).process(CountAndSum(), output_type=three)


def main() -> None:
    work = peers.WORKS[sys.argv[1]]
    configuration = Configuration()
    configuration.set_string("parallelism.default", str(SLOTS))
    configuration.set_string("taskmanager.numberOfTaskSlots", str(SLOTS))
    configuration.set_string("python.executable", sys.executable)
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    last: dict[int, tuple[int, int]] = {}
    with program(environment, work, work.check_rows).execute_and_collect() as rows:
        for key, count, total in rows:
            last[key] = max(last.get(key, (0, 0)), (count, total))
    columns = {"k": list(last), "c": [c for c, _ in last.values()], "s": [s for _, s in last.values()]}
    peers.check(work, columns, work.check_rows)
    numbers = program(environment, work, ROWS)
    numbers.filter(lambda row: False).print()
    peers.begin()
    environment.execute()
    peers.end(ROWS)


if __name__ == "__main__":
    main()
