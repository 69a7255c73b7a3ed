from __future__ import annotations

import pyarrow as pa

from firesteel.operators import LimitSpec
from firesteel.testing import OperatorHarness
from taskexecutor.executor.operators.limit import Limit
from tests.batches import batch_of

SCHEMA = pa.schema([("n", pa.int64())])


def opened(rows: int, **options: object) -> OperatorHarness:
    return OperatorHarness(Limit(LimitSpec(rows=rows)), [SCHEMA], **options).open()  # type: ignore[arg-type]


def numbers(harness: OperatorHarness) -> list[int]:
    return [row["n"] for row in harness.rows()]


def test_the_first_rows_pass_whatever_their_batches_are() -> None:
    harness = opened(5)
    for first in (0, 3, 6, 9):
        harness.process(batch_of(SCHEMA, [(n,) for n in range(first, first + 3)]))
    assert numbers(harness) == [0, 1, 2, 3, 4]


def test_no_row_passes_a_limit_of_zero() -> None:
    harness = opened(0)
    harness.process(batch_of(SCHEMA, [(1,)]))
    assert not harness.elements


def test_rows_before_a_checkpoint_count_after_it() -> None:
    harness = opened(3)
    harness.process(batch_of(SCHEMA, [(1,), (2,)]))
    restored = opened(3, restored=harness.checkpoint(1))
    restored.process(batch_of(SCHEMA, [(3,), (4,)]))
    assert numbers(restored) == [3]
