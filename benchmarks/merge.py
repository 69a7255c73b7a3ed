"""Measures merging of partial aggregates, without Spark and the exchange: partial rows per second
of the keyed half.

`python -m benchmarks.merge`. The measure is the CPU time of this thread, which depends less on
other load.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from firesteel.operator import StreamOperator
from firesteel.operators import RunningAggregateSpec, TumblingSpec, WindowAggregateSpec
from firesteel.plan.aggregates.parse import parse_aggregates
from firesteel.testing import OperatorHarness
from taskexecutor.executor.operators.running_aggregate import RunningAggregate
from taskexecutor.executor.operators.windows import window_operator

BATCH_ROWS = 65_536
ITEMS = parse_aggregates(["count(*) AS n", "sum(x) AS s"])
TIME = pa.timestamp("us", "UTC")
SIZE_US = 1_000_000
_RANDOM = np.random.default_rng(1)

DENSE: Callable[[np.ndarray], pa.Array] = pa.array
KEYS: dict[str, Callable[[np.ndarray], pa.Array]] = {
    "dense": DENSE,
    "sparse": lambda keys: pa.array(keys * 7_919_000_003),
    "text": lambda keys: pa.array(keys).cast(pa.string()),
}


def bundle(keys: int, kind: str, window: int | None) -> list[pa.RecordBatch]:
    """Returns Spark's result for a bundle in which every key occurs."""
    columns = {"k": KEYS[kind](_RANDOM.permutation(keys))}
    if window is not None:
        start = np.full(keys, window * SIZE_US)
        columns |= {
            "window_start": pa.array(start).view(TIME),
            "window_end": pa.array(start + SIZE_US).view(TIME),
        }
    for item in ITEMS:
        columns |= {name: pa.array(_RANDOM.integers(0, 1000, keys)) for name in item.partial}
    batches: list[pa.RecordBatch] = pa.table(
        columns | {"_rows": pa.array(np.ones(keys, np.int64))}
    ).to_batches(max_chunksize=BATCH_ROWS)
    return batches


def measure(
    name: str,
    keys: int,
    bundles: int,
    *,
    kind: str = "dense",
    windows: bool = False,
    expires: bool | None = None,
) -> None:
    """`expires`: a running aggregation by windows, whose keys expire or not."""
    timed = windows or expires is not None
    data = [bundle(keys, kind, number // 4 if timed else None) for number in range(bundles)]
    names = ["k", "window_start", "window_end"] if timed else ["k"]
    output = pa.schema(
        [data[0][0].schema.field(n) for n in names]
        + [pa.field(item.name, pa.int64()) for item in ITEMS]
    )
    operator: StreamOperator
    if windows:
        window = TumblingSpec(size_us=SIZE_US)
        operator = window_operator(
            WindowAggregateSpec(key_columns=("k",), window=window, aggregates=ITEMS)
        )
    else:
        operator = RunningAggregate(
            RunningAggregateSpec(
                key_columns=tuple(names),
                aggregates=ITEMS,
                mode="append" if expires else "update",
                expires="window_end" if expires else "",
            )
        )
    harness = OperatorHarness(operator, [data[0][0].schema], output_schema=output).open()
    began = time.thread_time()
    for number, batches in enumerate(data):
        for batch in batches:
            harness.process(batch)
        if timed:
            harness.watermark(number // 4 * SIZE_US - 1 + bool(expires))
    harness.end()
    took_s = time.thread_time() - began
    print(
        f"{name:42s} {keys * bundles / took_s / 1e6:6.1f} M partial rows/s,"
        f" {took_s / bundles * 1e3:7.2f} ms a bundle"
    )


if __name__ == "__main__":
    measure("running, 1,000 keys", 1_000, 400)
    measure("running, 1 M keys", 1_000_000, 8)
    measure("running, 300,000 keys far apart", 300_000, 6, kind="sparse")
    measure("running, 300,000 texts as keys", 300_000, 6, kind="text")
    measure("windows, 1,000 keys", 1_000, 400, windows=True)
    measure("windows, 1 M keys", 1_000_000, 8, windows=True)
    for expires, how in ((False, "kept"), (True, "expiring")):
        measure(f"running by windows, {how}, 1,000 keys", 1_000, 400, expires=expires)
        measure(f"running by windows, {how}, 300,000 keys", 300_000, 12, expires=expires)
